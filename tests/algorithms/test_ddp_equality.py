"""Our DDP on real gloo ranks: its steps are those of one process and of torch's DDP, in any combination of passes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from ddp_support import OPTIMIZERS, SMALL, Norms, Steps, Tied, averaged, close, gradients, inputs, on_ranks, same
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lessons.algorithms.ddp import BucketedDDP
from utils.ranks.recorder import record_collectives

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the functions here run on ranks

# ---------------------------------------------------------------------- equal to one process
STEPS, BATCH = 10, 3


def tokens_of(rank: int, step: int) -> Tensor:
    return torch.randint(0, 11, (BATCH, 4), generator=torch.Generator().manual_seed(1000 * step + rank))


def distributed_training() -> dict[str, Any]:
    """Ten steps with each optimizer, all ranks from different numbers; also what rank 0 began with."""
    rank, found = dist.get_rank(), {}
    for name, optimizer_of in OPTIMIZERS.items():
        torch.manual_seed(rank + 1)
        model = Tied()
        begin = copy.deepcopy(model.state_dict())
        ddp = BucketedDDP(model, bucket_cap_mb=0.0002)
        optimizer = optimizer_of(model.parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            ddp(tokens_of(rank, step)).square().mean().backward()
            optimizer.step()
        found[name] = begin, copy.deepcopy(model.state_dict()), len(ddp.buckets)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ten_steps_on_many_ranks_are_ten_steps_of_one_process_on_the_whole_batch(ranks: int) -> None:
    found = on_ranks(distributed_training, ranks=ranks)
    for name, optimizer_of in OPTIMIZERS.items():
        begin, _, buckets = found[0][name]
        assert buckets > 1
        assert all(one[name][0]["scale"] != begin["scale"] for one in found[1:])  # they began differently
        model = Tied()
        model.load_state_dict(begin)
        optimizer = optimizer_of(model.parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.cat([tokens_of(rank, step) for rank in range(ranks)])).square().mean().backward()
            optimizer.step()
        for rank in range(ranks):
            assert all(torch.equal(value, found[0][name][1][key]) for key, value in found[rank][name][1].items())
        # The same sums in another order: float64 rounds at 1e-16; ten steps (and Adam's division) make 1e-12 of it
        torch.testing.assert_close(found[0][name][1], dict(model.state_dict()), rtol=1e-10, atol=1e-12)
        assert not torch.allclose(model.scale, begin["scale"], rtol=1e-3)  # and it did learn


# ---------------------------------------------------------------------- equal to torch's DDP
def beside_torch(cases: list[dict[str, Any]]) -> list[str]:
    """Ours and torch's DDP train side by side; where they differ after a step (in gradients, parameters, buffers)."""
    rank, size, wrong = dist.get_rank(), dist.get_world_size(), []
    for case in cases:
        torch.manual_seed(rank)
        ours = Norms().to(torch.float32 if size == 2 else torch.float64)
        theirs = copy.deepcopy(ours)

        def batch(number: int, like: Tensor = ours.body[0].weight) -> Tensor:
            return inputs(rank, number, 8, 6, dtype=like.dtype)

        pairs = [
            (ours, BucketedDDP(ours, bucket_cap_mb=SMALL)),
            (theirs, DistributedDataParallel(theirs, bucket_cap_mb=SMALL)),
        ]
        optimizers = [OPTIMIZERS[case["optimizer"]](model.parameters()) for model, _ in pairs]
        for step in range(6):
            for (_, ddp), optimizer in zip(pairs, optimizers, strict=True):
                torch.manual_seed(100 * rank + step)  # for dropout
                if step % case["empty_every"] == 0:
                    optimizer.zero_grad(set_to_none=case["set_to_none"])
                for part in range(case["local"]):
                    with ddp.no_sync():
                        ddp(batch(10 * step + part)).square().mean().backward()
                ddp(batch(10 * step + 9)).square().mean().backward()
                optimizer.step()
            # (With local passes torch shares rank 0's buffers a forward pass earlier or later: rank 0's are the same.)
            tensors = "parameters" if case["local"] and rank else "state_dict"
            state, expected = ([*gradients(model), *values(model, tensors)] for model, _ in pairs)
            # Two ranks: a + b is b + a, to the bit. More: gloo may add in another order, float64 rounds at 1e-16.
            equal = same(state, expected) if size == 2 else close(state, expected, 1e-10)
            if not equal:
                wrong.append(f"{case}, step {step}")
    return wrong


def values(model: nn.Module, which: str) -> list[Tensor]:
    return list(model.parameters()) if which == "parameters" else list(model.state_dict().values())


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_step_is_that_of_torchs_ddp(ranks: int) -> None:
    cases = [
        {"optimizer": optimizer, "local": 0, "set_to_none": True, "empty_every": 1}
        for optimizer in ("SGD", "Adam", "AdamW")
    ] + [
        {"optimizer": "SGD", "local": local, "set_to_none": set_to_none, "empty_every": every}
        for local, set_to_none, every in ((2, True, 1), (2, False, 1), (1, True, 3), (0, False, 2))
    ]
    assert on_ranks(beside_torch, cases, ranks=ranks) == [[]] * ranks


def unused_beside_torch() -> list[str]:
    """Layers left out on one rank, on all, differently each step, with local passes between."""
    rank, wrong = dist.get_rank(), []
    for cap in (SMALL, 0.00015, 25.0):
        for set_to_none in (True, False):
            torch.manual_seed(rank)
            models = [Steps(5)]
            models.append(copy.deepcopy(models[0]))
            ddps = [
                BucketedDDP(models[0], bucket_cap_mb=cap, find_unused_parameters=True),
                DistributedDataParallel(models[1], bucket_cap_mb=cap, find_unused_parameters=True),
            ]
            optimizers = [OPTIMIZERS["SGD"](model.parameters()) for model in models]
            plans: list[tuple[Any, Any, Any]] = [  # skipped by rank 0, by rank 1, by both in a local pass before
                ((), (), None),
                ((1,), (), None),
                ((), (4, 3), None),
                ((2,), (2,), None),
                ((0, 4), (1, 2, 3), None),
                ((3,), (3,), (3,)),
                ((3,), (3,), (0,)),
                ((0, 1, 2, 3), (4,), None),
            ]
            for step, (*skips, local) in enumerate(plans):
                for ddp, optimizer in zip(ddps, optimizers, strict=True):
                    if step != 4:  # once, gradients of the step before stay
                        optimizer.zero_grad(set_to_none=set_to_none)
                    if local is not None:
                        with ddp.no_sync():
                            ddp(inputs(rank, step, 3, 5), skip=local).square().sum().backward()
                    ddp(inputs(rank, step, 3, 5), skip=skips[rank]).square().sum().backward()
                if not same(*(gradients(model) for model in models)):
                    wrong.append(f"cap {cap}, set_to_none {set_to_none}, step {step}")
                for optimizer in optimizers:
                    optimizer.step()
    return wrong


def test_parameters_without_a_gradient_are_as_in_torchs_ddp() -> None:
    assert on_ranks(unused_beside_torch) == [[], []]


# ---------------------------------------------------------------------- accumulation and passes
def many_passes() -> dict[str, bool]:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = Steps()
    ddp = BucketedDDP(model, bucket_cap_mb=SMALL)

    def loss(step: int, skip: tuple[int, ...] = ()) -> Callable[[nn.Module], Tensor]:
        return lambda model: model(inputs(rank, step, 3, 5), skip).square().sum()

    found = {}

    def check(name: str, *losses: Callable[[nn.Module], Tensor], exact: bool = True) -> None:
        # Not exact: a mean of the first pass is added to, and averaged again. float32 rounds at 1e-7
        found[name] = (same if exact else close)(gradients(model), averaged(ddp.module, *losses))
        ddp.zero_grad()

    for warm in range(2):
        loss(warm)(ddp).backward()
        check(f"one pass, step {warm}", loss(warm))

    (loss(1)(ddp) + loss(2)(ddp)).backward()
    check("two forward passes, one backward pass", lambda m: loss(1)(m) + loss(2)(m))

    one, two = loss(1)(ddp), loss(2)(ddp)
    one.backward()
    two.backward()
    check("two forward, then two backward passes", loss(1), loss(2), exact=False)

    one = loss(1)(ddp)
    one.backward(retain_graph=True)
    one.backward()
    check("the same graph twice", loss(1), loss(1), exact=False)

    with ddp.no_sync():
        one = loss(1)(ddp)
    one.backward()  # the forward pass was inside: local
    plain = copy.deepcopy(model)
    loss(1)(plain).backward()
    found["no_sync belongs to the forward pass"] = same(gradients(model), gradients(plain))
    loss(2)(ddp).backward()
    check("after no_sync", loss(1), loss(2))

    with ddp.no_sync():
        loss(1, (0, 2))(ddp).backward()  # unused ones do not matter here
    loss(2)(ddp).backward()
    check("no_sync with unused parameters", loss(1, (0, 2)), loss(2))

    loss(1)(ddp)  # a loss that nobody uses
    with torch.no_grad():
        loss(1)(ddp)
    loss(2)(ddp).backward()
    check("forward passes without a backward pass", loss(2))

    one = loss(1)(ddp)
    with torch.no_grad():
        loss(3)(ddp)  # evaluated between forward and backward pass
    one.backward()
    check("an evaluation before the backward pass", loss(1))

    with record_collectives() as record:
        for _ in range(2):
            with ddp.no_sync():
                loss(1)(ddp).backward()
    found["no_sync sends nothing"] = record.names == []
    ddp.zero_grad()
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_passes_add_up_in_any_combination(ranks: int) -> None:
    for found in on_ranks(many_passes, ranks=ranks):
        assert all(found.values()), [name for name, right in found.items() if not right]
