"""What our DDP sends, and when: buffers, collectives and bytes, launched in one order; the plan of its buckets."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from ddp_support import SMALL, Wire, averaged, close, gradients, inputs, on_ranks, same
from torch import Tensor, nn

from lessons.algorithms.ddp import BucketedDDP, plan_buckets
from utils.ranks.recorder import record_collectives

pytestmark = pytest.mark.numeric

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the functions here run on ranks


# ---------------------------------------------------------------------- buffers
def buffers_after_steps(share: bool) -> dict[str, Any]:
    rank = dist.get_rank()
    model = nn.BatchNorm1d(3)
    model.running_mean.fill_(rank + 1.0)
    model.register_buffer("flags", torch.tensor([rank == 0, True]))
    model.register_buffer("nothing", torch.zeros(0))
    ddp = BucketedDDP(model, forward_sync_buffers=share)
    found = {"begin": model.running_mean.clone(), "flags": model.flags.clone()}
    for step in range(2):
        ddp(inputs(rank, step, 5, 3)).square().sum().backward()
        found[f"after {step}"] = model.running_mean.clone()
    with record_collectives() as record:
        with ddp.no_sync():
            ddp(inputs(rank, 0, 5, 3))
        with torch.no_grad():
            ddp(inputs(rank, 0, 5, 3))
    return found | {"quiet": record.names == [], "seen": model.num_batches_tracked.item()}


def test_buffers_are_rank_0s_at_the_start_and_before_each_forward_pass() -> None:
    shared, own = on_ranks(buffers_after_steps, True), on_ranks(buffers_after_steps, False)
    for found in (*shared, *own):
        assert found["begin"].tolist() == [1.0, 1.0, 1.0] and found["flags"].tolist() == [True, True]
        assert found["quiet"] and found["seen"] == 4
    for found, keep in ((shared, False), (own, True)):
        for rank in (0, 1):
            mean = torch.ones(3)
            for step in (0, 1):
                before = mean if keep or step == 0 else found[0]["after 0"]
                mean = 0.9 * before + 0.1 * inputs(rank, step, 5, 3).mean(0)
                torch.testing.assert_close(found[rank][f"after {step}"], mean)


# ---------------------------------------------------------------------- what is sent, and when
def counted() -> dict[str, Any]:
    rank, found = dist.get_rank(), {}
    with record_collectives() as record:
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6).double().requires_grad_(False))
        ddp = BucketedDDP(model[:2], bucket_cap_mb=0.0001)
    found["made"] = [(call.name, call.dtype, call.bytes, call.peer) for call in record.calls]
    for step in range(3):
        with record_collectives() as record:
            ddp(inputs(rank, step, 4, 6)).sum().backward()
        found[f"step {step}"] = [(call.name, call.dtype, call.bytes) for call in record.calls]
        found[f"asynchronous {step}"] = all(call.asynchronous for call in record.of("all_reduce"))
    ddp = BucketedDDP(nn.Linear(6, 6), find_unused_parameters=True)
    for _ in range(2):
        with record_collectives() as record:
            ddp(inputs(rank, 0, 4, 6)).sum().backward()
    found["unused"] = [(call.name, call.bytes) for call in record.calls]
    return found


def test_collectives_and_their_bytes() -> None:
    # Linear(6, 6): 144 + 24 bytes; BatchNorm1d(6): 24 + 24 bytes, and buffers of 24 + 24 and 8 bytes. Cap: 104 bytes.
    buffers = [("broadcast", "float32", 48), ("broadcast", "int64", 8)]
    for found in on_ranks(counted):
        assert sorted(found["made"]) == [("broadcast", "float32", 264, 0), ("broadcast", "int64", 8, 0)]
        reduced = [call for call in found["step 0"] if call[0] == "all_reduce"]
        assert found["step 0"] == [*buffers, *reduced]
        assert [nbytes for _, _, nbytes in reduced] == [216]  # 24 + 24 + 24 is below the cap: the weight fills it up
        assert found["step 1"][0] == ("broadcast", "int64", 4 * 8)  # the order of the four, once
        assert found["step 1"][1:3] == buffers
        assert sum(nbytes for _, _, nbytes in found["step 1"][3:]) == 216
        assert found["step 2"] == found["step 1"][1:]
        assert all(found[f"asynchronous {step}"] for step in range(3))
        assert found["unused"] == [("all_reduce", 168), ("all_reduce", 8)]  # who has a gradient: an int32 for each


class Branches(nn.Module):
    """Two branches whose gradients come in the order of the calls, and that order differs from rank to rank."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, width) for width in (3, 4, 5, 6, 7))

    def forward(self, x: Tensor, order: list[int]) -> Tensor:
        return sum(self.parts[i](x).square().sum() for i in order)


def launched_in_one_order() -> dict[str, Any]:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = Branches()
    ddp = BucketedDDP(model, bucket_cap_mb=SMALL)
    arrivals: list[list[int]] = []
    numbers = {one: i for i, one in enumerate(model.parameters())}
    for one in model.parameters():
        one.register_post_accumulate_grad_hook(lambda one: arrivals[-1].append(numbers[one]))
    sent, right = [], []
    for step in range(5):
        order = random.Random(10 * step + rank).sample(range(5), 5)

        def loss(model: nn.Module, order: list[int] = order, step: int = step) -> Tensor:
            return model(inputs(rank, step, 2, 4), order)

        ddp.zero_grad()
        arrivals.append([])
        with record_collectives() as record:
            loss(ddp).backward()
        sent.append([call.bytes for call in record.of("all_reduce")])
        right.append(close(gradients(model), averaged(model, loss)))  # (1/3 is rounded)
    return {"arrivals": arrivals, "sent": sent, "right": all(right), "plan": [bucket.nbytes for bucket in ddp.buckets]}


def test_all_ranks_launch_in_one_order_though_gradients_come_in_different_orders() -> None:
    ranks = on_ranks(launched_in_one_order, ranks=3)
    assert len({str(found["arrivals"]) for found in ranks}) == 3
    assert all(found["sent"] == ranks[0]["sent"] and found["right"] for found in ranks)
    sizes = [4 * one.numel() for one in Branches().parameters()]
    assert ranks[0]["sent"][0] == sizes[::-1]  # before the rebuild: from the last to the first
    rebuilt = [sizes[i] for i in ranks[0]["arrivals"][0]]  # then as gradients came on rank 0 in the first step
    assert all(found["plan"] == rebuilt and found["sent"][1:] == [rebuilt] * 4 for found in ranks)


def test_a_bucket_is_launched_as_soon_as_it_is_ready_and_waited_for_when_the_backward_pass_has_ended() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    wire = Wire()
    ddp = BucketedDDP(model, bucket_cap_mb=SMALL, communicator=wire)
    names = {one: name for name, one in model.named_parameters()}
    for one in model.parameters():
        one.register_post_accumulate_grad_hook(lambda one: wire.log.append(("gradient", names[one])))
    for step in range(3):
        model.zero_grad()
        wire.log.clear()
        ddp(torch.ones(2, 4)).sum().backward()
        expected = [("broadcast", 24)] if step == 1 else []
        for name in ("2.weight", "1.weight", "0.weight"):
            expected += [("launch", 64), ("gradient", name)]  # (our hook is the first of the two)
        assert wire.log == [*expected, ("wait", 64), ("wait", 64), ("wait", 64)]
    plain = copy.deepcopy(model)
    plain(torch.ones(2, 4)).sum().backward()
    assert same(gradients(model), gradients(plain))


def test_a_bucket_waits_for_the_one_in_front_of_it() -> None:
    wire = Wire()
    model = Branches()
    ddp = BucketedDDP(model, bucket_cap_mb=SMALL, rebuild=False, communicator=wire)
    sizes = {4 * one.numel(): i for i, one in enumerate(model.parameters())}
    assert len(sizes) == 10
    for one in model.parameters():
        one.register_post_accumulate_grad_hook(lambda one: wire.log.append(("gradient", sizes[one.nbytes])))
    for _ in range(3):
        wire.log.clear()
        ddp(torch.ones(2, 4), [4, 3, 2, 1, 0]).backward()  # the gradients of part 4, the first bucket's, come last
        launches = [sizes[what] for kind, what in wire.log if kind == "launch"]
        before_last = wire.log[: max(i for i, (kind, _) in enumerate(wire.log) if kind == "gradient")]
        assert launches == list(range(9, -1, -1))
        assert sum(kind == "launch" for kind, _ in before_last[:-12]) == 0  # all held back until nearly the end


def test_gradients_live_in_the_buckets_so_they_cost_no_more_memory() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    ddp = BucketedDDP(model, communicator=Wire())
    for _ in range(3):
        model.zero_grad()
        ddp(torch.ones(2, 4)).sum().backward()
        (bucket,) = ddp.buckets
        start, end = bucket.flat.data_ptr(), bucket.flat.data_ptr() + bucket.nbytes
        assert all(start <= one.grad.data_ptr() < end for one in model.parameters())


# ---------------------------------------------------------------------- the plan
def plans(seed: int) -> Iterator[tuple[list[Tensor], float, float | None]]:
    chance = random.Random(seed)
    for _ in range(60):
        types = chance.sample([torch.float32, torch.float64, torch.bfloat16, torch.complex64], chance.randint(1, 4))
        devices = chance.choice([["cpu"], ["cpu", "meta"]])
        tensors = [
            torch.empty(
                chance.choice([0, 1, 7, 64, 100, 1000]), dtype=chance.choice(types), device=chance.choice(devices)
            )
            for _ in range(chance.randint(1, 30))
        ]
        cap = chance.choice([1, 100, 400, 4000, 10**6, float("inf")])
        yield tensors, cap, chance.choice([None, 1, 50, 400, 10**6])


def test_plans_are_torchs_groups() -> None:
    for tensors, cap, first in plans(1):
        limits = [min(one, 2**62) for one in ([cap] if first is None else [first, cap])]
        groups, _ = dist._compute_bucket_assignment_by_size(tensors, [int(one) for one in limits])
        assert sorted(plan_buckets(tensors, cap, first)) == sorted(sorted(group) for group in groups)
