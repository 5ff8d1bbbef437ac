"""Our DDP on real gloo ranks: equal to one process, equal to torch's DDP, launched in order, counted; clear errors."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import utils
from utils.algorithms.ddp import MB, BucketedDDP, Ranks, plan_buckets
from utils.checks import record_collectives
from utils.ranks.failures import RankError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the functions here run on ranks

SMALL = 1e-5  # MiB: about ten bytes, so every parameter has a bucket of its own
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


def on_ranks(function: Callable[..., Any], *args: Any, ranks: int = 2) -> list[Any]:
    return utils.launch(function, *args, ranks=ranks, backend="gloo", timeout=90, show_output=False)


# ---------------------------------------------------------------------- models
class Tied(nn.Module):
    """Tokens: an embedding that is also the head, a norm, a frozen layer, a scalar, a convolution in channels_last."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6, dtype=dtype)
        self.frozen = nn.Linear(6, 6, dtype=dtype).requires_grad_(False)
        self.mix = nn.Conv2d(2, 2, 3, padding=1, dtype=dtype).to(memory_format=torch.channels_last)
        self.scale = nn.Parameter(torch.randn((), dtype=dtype))
        self.norm = nn.LayerNorm(6, dtype=dtype)
        self.head = nn.Linear(6, 11, dtype=dtype)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(torch.tanh(self.frozen(self.table(tokens))))  # [batch, 4, 6]
        x = x + self.mix(x.view(-1, 2, 2, 6)).reshape(x.shape) * self.scale
        return self.head(x).mean(1)


class Steps(nn.Module):
    """Linear layers, of which any may be left out; sizes differ, so that bytes tell which gradient is sent."""

    def __init__(self, layers: int = 4, width: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: Tensor, skip: tuple[int, ...] = ()) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = x if i in skip else torch.tanh(layer(x))
        return x


class Norms(nn.Module):
    """Batch norm and dropout: buffers of two types, and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.2), nn.Linear(9, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def inputs(rank: int, step: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * step + rank), dtype=dtype)


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if one.grad is None else one.grad.clone() for one in model.parameters()]


def same(a: list[Tensor | None], b: list[Tensor | None]) -> bool:
    """The same bits, and None in the same places."""
    return len(a) == len(b) and all(
        x is y if x is None or y is None else x.dtype == y.dtype and torch.equal(x, y)
        for x, y in zip(a, b, strict=True)
    )


def close(a: list[Tensor], b: list[Tensor], tolerance: float = 1e-5) -> bool:
    return all(torch.allclose(x, y, rtol=tolerance, atol=tolerance / 10) for x, y in zip(a, b, strict=True))


def averaged(model: nn.Module, *losses: Callable[[nn.Module], Tensor]) -> list[Tensor]:
    """The plain way, written without hooks: add up all losses' gradients on a copy, then average each of them."""
    model = copy.deepcopy(model)
    for loss in losses:
        loss(model).backward()
    for one in model.parameters():
        if one.grad is not None:
            one.grad = one.grad.contiguous()
            dist.all_reduce(one.grad)
            one.grad /= dist.get_world_size()
    return gradients(model)


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


def unused_keeps_its_gradient() -> bool:
    model = Steps(3)
    ddp = BucketedDDP(model, find_unused_parameters=True)
    ddp(inputs(dist.get_rank(), 0, 3, 5)).sum().backward()
    before = gradients(model)[1]
    ddp(inputs(dist.get_rank(), 1, 3, 5), skip=(1,)).sum().backward()
    return torch.equal(before, gradients(model)[1])


def test_a_parameter_that_no_rank_uses_keeps_the_gradient_it_has_to_the_bit() -> None:
    assert on_ranks(unused_keeps_its_gradient, ranks=3) == [True] * 3  # 3 · (g / 3) would not be g everywhere


def rebuilt_beside_torch() -> list[tuple[list[int], list[int], list[int], list[int]]]:
    """Bytes of the all-reduces of the first and the third step, ours and torch's, for several caps."""
    found = []
    for cap, sizes in ((None, [300, 500, 200, 700, 5]), (0.3, [100, 300, 200, 250]), (float("inf"), [600, 600])):
        torch.manual_seed(0)
        # the layers are made in another order than they are used: the rebuild has something to do
        layers = nn.ModuleList(nn.Linear(size, size) for size in sizes)
        wide = max(sizes)

        class Shuffled(nn.Module):
            def __init__(self, layers: nn.ModuleList) -> None:
                super().__init__()
                self.layers = layers

            def forward(self, x: Tensor) -> Tensor:
                return sum(layer(x[:, : layer.in_features]).sum() for layer in [*self.layers[1:], self.layers[0]])

        bytes_of = []
        for kind in (BucketedDDP, DistributedDataParallel):
            arguments = {} if cap is None else {"bucket_cap_mb": cap if cap < 1e6 else 1e6}
            if kind is BucketedDDP and cap == float("inf"):
                arguments = {"bucket_cap_mb": cap}
            ddp = kind(Shuffled(copy.deepcopy(layers)), **arguments)
            for step in range(3):
                with record_collectives() as record:
                    ddp(torch.ones(2, wide)).backward()
                if step != 1:
                    bytes_of.append([call.bytes for call in record.of("all_reduce")])
        found.append(tuple(bytes_of))
    return found


def test_the_rebuilt_plan_is_torchs() -> None:
    for found in on_ranks(rebuilt_beside_torch):
        for i, (first, third, torchs_first, torchs_third) in enumerate(found):
            assert third == torchs_third, (first, third, torchs_third)
            assert sum(first) == sum(third) == sum(torchs_first)
            assert (len(third) > 1) == (i < 2)


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
        with ddp.no_sync():
            loss(1)(ddp).backward()
        loss(2)(ddp).backward()
    loss(3)(ddp).backward()
    check("nested no_sync", loss(1), loss(2), loss(3))

    try:
        with ddp.no_sync():
            loss(1)(ddp).backward()
            raise KeyError
    except KeyError:
        pass
    loss(2)(ddp).backward()
    check("no_sync left by an exception", loss(1), loss(2))

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


# ---------------------------------------------------------------------- parameters and models of all kinds
class Kinds(nn.Module):
    """Parameters of four types and of every shape that gives trouble."""

    def __init__(self, part: str) -> None:
        super().__init__()
        if part == "types":
            self.single = nn.Parameter(torch.randn(4, 3))
            self.long = nn.Parameter(torch.randn(3, 5, dtype=torch.float64))
            self.short = nn.Parameter(torch.randn(5, 2).bfloat16())
            self.more = nn.Parameter(torch.randn(2, 2))
            self.pair = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        elif part == "shapes":
            self.scalar = nn.Parameter(torch.randn(()))
            self.empty = nn.Parameter(torch.zeros(0, 3))
            self.transposed = nn.Parameter(torch.randn(5, 4).t())
            self.gaps = nn.Parameter(torch.randn(6, 10)[::2, ::5])
            self.images = nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
            self.single = nn.Parameter(torch.randn(1, 1, 1))

    def forward(self, x: float) -> Tensor:
        return sum(((one * x).abs() ** 2).sum().double() * (i + 1) for i, one in enumerate(self.parameters()))


def all_kinds(part: str) -> list[str]:
    rank, wrong = dist.get_rank(), []
    for cap in (SMALL, 0.0001, 25.0):
        torch.manual_seed(rank)
        model = Kinds(part)
        ddp = BucketedDDP(model, bucket_cap_mb=cap)
        strides = [one.stride() for one in model.parameters()]
        optimizer = OPTIMIZERS["SGD"](model.parameters())
        for step in range(4):
            optimizer.zero_grad(set_to_none=step < 2)

            def loss(model: nn.Module, step: int = step) -> Tensor:
                return model(rank + step + 1.0)

            loss(ddp).backward()
            expected = averaged(model, loss)
            for (name, one), right in zip(model.named_parameters(), expected, strict=True):
                if not torch.equal(one.grad, right) or one.grad.shape != one.shape or one.grad.dtype != one.dtype:
                    wrong.append(f"{name}, cap {cap}, step {step}")
            optimizer.step()
        wrong += [f"stride of {i}" for i, one in enumerate(model.parameters()) if one.stride() != strides[i]]
        if len({one.dtype for one in model.parameters()}) > len(ddp.buckets):
            wrong.append("types share a bucket")
    return wrong


@pytest.mark.parametrize("part", ["types", "shapes"])
def test_parameters_of_every_type_and_shape(part: str) -> None:
    assert on_ranks(all_kinds, part) == [[], []]


@dataclass
class Answer:
    """What a model may return."""

    value: Tensor


class Outputs(nn.Module):
    """A model that returns its result in the way asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, *, kind: str) -> Any:
        y = self.b(self.a(x))
        return {"dict": {"y": y}, "tuple": (y, 1), "dataclass": Answer(y), "nested": [{"y": (y, None)}]}[kind]


class Checkpointed(nn.Module):
    """Every layer is computed again in the backward pass."""

    def __init__(self, reentrant: bool, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.reentrant, self.wrap = nn.Linear(5, 5), reentrant, wrap
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = torch.tanh(checkpoint(layer, x, use_reentrant=self.reentrant))
        return self.wrap(x)


class Beside(nn.Module):
    """Keeps a second loss beside its output; one layer has a part in that one only."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.main(x)
        self.aux = self.other(x).square().sum()
        return y


def kinds_of_losses() -> dict[str, bool]:
    """Losses that do not only come from what the model returned."""
    rank, found = dist.get_rank(), {}
    torch.manual_seed(rank)
    for unused in (False, True):
        ddp = BucketedDDP(Beside(), bucket_cap_mb=SMALL, find_unused_parameters=unused)

        def loss(model: nn.Module) -> Tensor:
            main = model(inputs(rank, 0, 3, 4)).square().sum()
            inner = model.module if isinstance(model, BucketedDDP) else model
            aux, inner.aux = inner.aux, None
            return main + aux

        def regularized(model: nn.Module) -> Tensor:
            return loss(model) + sum(one.square().sum() for one in model.parameters())

        def fails(_: Tensor) -> None:
            raise ArithmeticError

        for step, each in enumerate([loss, loss, regularized, regularized]):
            if step % 2:  # after a backward pass that failed halfway
                output = ddp(inputs(rank, 9, 3, 4))
                output.register_hook(fails)
                try:
                    (output.sum() + ddp.module.aux).backward()
                except ArithmeticError:
                    ddp.module.aux = None
            ddp.zero_grad()
            expected = averaged(ddp.module, each)
            each(ddp).backward()
            found[f"a loss beside the output, step {step}, {unused}"] = same(gradients(ddp.module), expected)

    class Holds(Outputs):
        def forward(self, x: Tensor) -> Any:
            return SimpleNamespace(y=super().forward(x, kind="tuple")[0])

    ddp = BucketedDDP(Holds())
    for step in range(2):
        ddp.zero_grad()

        def hidden(model: nn.Module) -> Tensor:
            return model(inputs(rank, 0, 2, 3)).y.square().sum()

        expected = averaged(ddp.module, hidden)
        try:
            hidden(ddp).backward()
            found[f"an output of an unknown class, step {step}"] = same(gradients(ddp.module), expected)
        except TypeError:  # or it is refused
            pass
    return found


def test_losses_beside_the_output_count_too() -> None:
    for found in on_ranks(kinds_of_losses):
        assert all(found.values()), [name for name, right in found.items() if not right]


def kinds_of_models() -> dict[str, bool]:
    rank, found = dist.get_rank(), {}
    torch.manual_seed(rank)
    take: dict[str, Callable[[Any], Tensor]] = {
        "dict": lambda answer: answer["y"],
        "tuple": lambda answer: answer[0],
        "dataclass": lambda answer: answer.value,
        "nested": lambda answer: answer[0]["y"][0],
    }
    for kind, value in take.items():
        ddp = BucketedDDP(Outputs())

        def loss(model: nn.Module, kind: str = kind, value: Callable[[Any], Tensor] = value) -> Tensor:
            return value(model(inputs(rank, 0, 2, 3), kind=kind)).square().sum()

        for step in range(2):
            ddp.zero_grad()
            loss(ddp).backward()
            found[f"returns {kind}, step {step}"] = same(gradients(ddp.module), averaged(ddp.module, loss))
    forms: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
        "a tensor": (lambda y: y, lambda answer: answer),
        "a dict": (lambda y: {"y": y}, lambda answer: answer["y"]),
        "a list": (lambda y: [None, (y,)], lambda answer: answer[1][0]),
        "a dataclass": (Answer, lambda answer: answer.value),
    }
    for reentrant, cap, form in product((False, True), (SMALL, 25.0), forms):
        wrap, unwrap = forms[form]
        ddp = BucketedDDP(Checkpointed(reentrant, wrap), bucket_cap_mb=cap)

        def loss(model: nn.Module, unwrap: Callable[[Any], Tensor] = unwrap) -> Tensor:
            return unwrap(model(inputs(rank, 0, 2, 5))).square().sum()

        for step in range(3):
            ddp.zero_grad()
            with record_collectives() as record:
                loss(ddp).backward()
            name = f"checkpoint in {form}, use_reentrant={reentrant}, cap {cap}, step {step}"
            found[name] = same(gradients(ddp.module), averaged(ddp.module, loss))
            found[f"{name}: each bucket once"] = len(record.of("all_reduce")) == len(ddp.buckets)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ddp = BucketedDDP(model)
    for mode in (True, False):
        ddp.train(mode).zero_grad()

        def twice(model: nn.Module) -> Tensor:
            return (model(inputs(rank, 0, 4, 3)) * model(inputs(rank, 1, 4, 3))).sum()

        if not mode:  # rank 0's running means count
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
        expected = averaged(model, twice)
        twice(ddp).backward()
        found[f"batch norm twice, training {mode}"] = same(gradients(model), expected)
    return found


def test_a_model_that_returns_a_parameter_keeps_no_hooks_on_it() -> None:
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(2, 2), nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), self.scale

    wire = Wire()
    ddp = BucketedDDP(Returns(), communicator=wire)
    for local in (False, False, True):
        wire.log.clear()
        with ddp.no_sync() if local else nullcontext():
            y, scale = ddp(torch.ones(1, 2))
        (y * scale).sum().backward()
        assert [kind for kind, _ in wire.log if kind == "launch"] == ([] if local else ["launch"])


def test_outputs_of_any_form_checkpointing_and_buffers_used_twice() -> None:
    for found in on_ranks(kinds_of_models):
        assert all(found.values()), [name for name, right in found.items() if not right]


# ---------------------------------------------------------------------- buffers
def buffers_after_steps(share: bool) -> dict[str, Any]:
    rank = dist.get_rank()
    model = nn.BatchNorm1d(3)
    model.running_mean.fill_(rank + 1.0)
    model.register_buffer("flags", torch.tensor([rank == 0, True]))
    model.register_buffer("nothing", torch.zeros(0))
    ddp = BucketedDDP(model, broadcast_buffers=share)
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


class Wire:
    """A communicator for one process: all ranks have the same numbers, and what is called is kept.

    Attributes:
        log: ("launch", bytes) and ("wait", bytes), and whatever else a test writes into it.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.log: list[tuple[str, Any]] = []

    def all_reduce(self, tensor: Tensor) -> Any:
        self.log.append(("launch", tensor.nbytes))
        wire = self

        class Handle:
            def wait(self) -> None:  # the sum is there only when one has waited for it
                wire.log.append(("wait", tensor.nbytes))
                tensor.mul_(wire.size)

        return Handle()

    def broadcast(self, tensor: Tensor) -> Any:
        self.log.append(("broadcast", tensor.nbytes))

        class Handle:
            def wait(self) -> None:
                pass

        return Handle()


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


def test_without_a_rebuild_the_plan_stays() -> None:
    for rebuild, stays in ((False, True), (True, False)):
        ddp = BucketedDDP(Branches(), bucket_cap_mb=SMALL, rebuild=rebuild, communicator=Wire())
        before = [bucket.nbytes for bucket in ddp.buckets]
        for _ in range(2):
            ddp(torch.ones(2, 4), [4, 0, 1, 3, 2]).backward()
        assert ([bucket.nbytes for bucket in ddp.buckets] == before) is stays


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")  # a cycle, until zero_grad
def test_a_backward_pass_that_keeps_a_graph_of_itself_gives_the_same_gradients() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    plain = copy.deepcopy(model)
    ddp = BucketedDDP(model, communicator=Wire())
    for _ in range(2):
        for one in (model, plain):
            one.zero_grad()
            (ddp if one is model else one)(torch.ones(2, 3)).square().sum().backward(create_graph=one is model)
        assert same(gradients(model), gradients(plain))
        assert not any(one.grad.requires_grad for one in model.parameters())


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


def test_every_plan_takes_each_parameter_once_keeps_types_apart_and_its_caps() -> None:
    for tensors, cap, first in plans(0):
        plan = plan_buckets(tensors, cap, first)
        assert sorted(i for members in plan for i in members) == list(range(len(tensors)))
        assert all(members == sorted(members) for members in plan)  # in the order given
        assert [max(members) for members in plan] == sorted(max(members) for members in plan)  # as they get ready
        kinds = [(one.dtype, one.device) for one in tensors]
        assert all(len({kinds[i] for i in members}) == 1 for members in plan)
        for kind in set(kinds):
            mine = [members for members in plan if kinds[members[0]] == kind]
            for number, members in enumerate(mine):
                limit = first if number == 0 and first is not None else cap
                sizes = [tensors[i].nbytes for i in members]
                assert sum(sizes[:-1]) < limit  # it was open until its last one came
                assert number == len(mine) - 1 or sum(sizes) >= limit  # and only the last may stay open


def test_plans_are_torchs_groups() -> None:
    for tensors, cap, first in plans(1):
        limits = [min(one, 2**62) for one in ([cap] if first is None else [first, cap])]
        groups, _ = dist._compute_bucket_assignment_by_size(tensors, [int(one) for one in limits])
        assert sorted(plan_buckets(tensors, cap, first)) == sorted(sorted(group) for group in groups)


# ---------------------------------------------------------------------- wrappers come and go
def wrapped_again() -> dict[str, Any]:
    rank, found = dist.get_rank(), {}
    torch.manual_seed(rank)
    model = Steps()

    def loss(model: nn.Module) -> Tensor:
        return model(inputs(rank, 0, 2, 5)).square().sum()

    def step(ddp: nn.Module) -> tuple[bool, int]:
        model.zero_grad()
        with record_collectives() as record:
            loss(ddp).backward()
        return same(gradients(model), averaged(model, loss)), len(record.of("all_reduce"))

    first = BucketedDDP(model)
    found["first"] = step(first)
    again = BucketedDDP(model)
    found["the older one is still alive"] = step(again)
    found["the older one acts again"] = step(first)
    del again
    gc.collect()
    gone = weakref.ref(first)
    del first
    found["dropped"] = gone() is None
    model.zero_grad()
    with record_collectives() as record:
        loss(model).backward()
    found["without a wrapper"] = record.names
    found["third"] = step(BucketedDDP(model))
    last = BucketedDDP(model)
    step(last)
    with record_collectives() as record:
        loss(last.module).backward()
    found["the module itself"] = record.names
    return found


def test_the_hooks_of_an_older_wrapper_are_dead() -> None:
    for found in on_ranks(wrapped_again):
        once = (True, 1)
        assert found["first"] == found["third"] == once
        assert found["dropped"] is True and found["without a wrapper"] == found["the module itself"] == []
        assert found["the older one is still alive"] == found["the older one acts again"] == once


def saved_and_loaded() -> dict[str, Any]:
    rank, found = dist.get_rank(), {}
    torch.manual_seed(rank)
    ddp = BucketedDDP(Steps(), bucket_cap_mb=SMALL)

    def loss(model: nn.Module) -> Tensor:
        return model(inputs(rank, 0, 2, 5)).square().sum()

    loss(ddp).backward()
    state = ddp.state_dict()
    found["names"] = list(state) == [f"module.layers.{i}.weight" for i in range(4)]
    other = BucketedDDP(Steps())
    other.load_state_dict(state)
    loss(other).backward()
    found["loaded"] = same(gradients(other.module), gradients(ddp.module))
    plain = Steps()
    plain.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    found["unwrapped"] = same(list(plain.parameters()), list(ddp.parameters()))
    twin = BucketedDDP(copy.deepcopy(ddp.module))
    loss(twin).backward()
    found["a copy of the module"] = same(gradients(twin.module), gradients(ddp.module))
    return found


def test_states_are_saved_and_loaded_and_a_copy_of_the_module_can_be_wrapped() -> None:
    for found in on_ranks(saved_and_loaded):
        assert all(found.values()), [name for name, right in found.items() if not right]


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps])
def test_a_copy_of_a_wrapper_would_have_no_hooks_so_it_is_refused(how: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"BucketedDDP cannot be copied or pickled: copy its \.module"):
        how(BucketedDDP(nn.Linear(2, 2), communicator=Wire()))


def in_a_group() -> list[float]:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rank = dist.get_rank()
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, rank + 1.0)
    ddp = BucketedDDP(model, communicator=Ranks(groups[rank % 2]))
    ddp(torch.tensor([[rank + 1.0]])).sum().backward()
    return [model.weight.item(), model.weight.grad.item()]


def test_a_process_group_has_its_own_average() -> None:
    assert on_ranks(in_a_group, ranks=4) == [[1.0, 2.0], [2.0, 3.0]] * 2


# ---------------------------------------------------------------------- errors
def after_an_error() -> dict[str, Any]:
    rank, found = dist.get_rank(), {}
    torch.manual_seed(rank)

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise ArithmeticError("on purpose")

    class Sometimes(Steps):
        broken = False

        def forward(self, x: Tensor, skip: tuple[int, ...] = ()) -> Tensor:
            x = self.layers[0](x)
            x = Broken.apply(x) if self.broken else x
            for i in (1, 2, 3):
                x = x if i in skip else self.layers[i](x)
            return x

    for unused in (False, True):
        model = Sometimes()
        ddp = BucketedDDP(model, bucket_cap_mb=SMALL, find_unused_parameters=unused)

        def loss(model: nn.Module) -> Tensor:
            return model(inputs(rank, 0, 2, 5)).square().sum()

        for step in range(5):
            ddp.zero_grad()
            model.broken = step in (0, 2)
            try:
                loss(ddp).backward()
                found[f"raised in step {step}, {unused}"] = step not in (0, 2)
                found[f"step {step}, {unused}"] = same(gradients(model), averaged(model, loss))
            except ArithmeticError as error:
                found[f"raised in step {step}, {unused}"] = step in (0, 2) and str(error) == "on purpose"
        if not unused:
            found["planned anew, though the first pass failed"] = not ddp.rebuild_next
            for _ in range(2):
                try:
                    ddp(inputs(rank, 0, 2, 5), skip=(1, 3)).sum().backward()
                except RuntimeError as error:
                    found["sentence"] = str(error)
                ddp.zero_grad()
                loss(ddp).backward()
                found["after the complaint"] = same(gradients(model), averaged(model, loss))
    return found


def test_after_a_backward_pass_that_failed_the_next_one_is_right() -> None:
    for found in on_ranks(after_an_error):
        assert found.pop("sentence") == (
            "2 of 4 parameters got no gradient in this backward pass: layers.3.weight, layers.1.weight. "
            "Give them a part in the loss, or say find_unused_parameters=True"
        )
        assert all(found.values()), [name for name, right in found.items() if not right]


def unused_on_rank_1() -> None:
    ddp = BucketedDDP(Steps(), bucket_cap_mb=SMALL)
    for step in range(2):
        skip = (2,) if dist.get_rank() == step == 1 else ()
        ddp(inputs(0, 0, 2, 5), skip=skip).sum().backward()


def test_a_parameter_unused_on_one_rank_is_an_error_there_and_no_hang() -> None:
    with pytest.raises(
        RankError, match=r"1 of 4 parameters got no gradient .*: layers\.2\.weight\. Give them"
    ) as caught:
        on_ranks(unused_on_rank_1)
    assert caught.value.failures[0].rank == 1


def test_two_backward_passes_that_share_the_parameters_out_are_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    ddp = BucketedDDP(Two(), communicator=Wire())
    one, _ = ddp(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match=r"^2 of 4 parameters got no gradient in this backward pass: b\.bias, b\.w"):
        one.sum().backward()


def test_a_gradient_that_comes_twice_in_one_backward_pass_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = checkpoint(self.layer, x, use_reentrant=True)  # each has a backward pass of its own, inside
            return x

    ddp = BucketedDDP(Twice(), communicator=Wire())
    with pytest.raises(RuntimeError, match=r"layer\.(weight|bias).* twice"):
        ddp(torch.ones(1, 2).requires_grad_()).sum().backward()


def test_many_unused_parameters_are_not_all_listed() -> None:
    ddp = BucketedDDP(Steps(9), communicator=Wire())
    with pytest.raises(RuntimeError, match=r"^7 of 9 parameters .*layers\.8\.weight(, [^,]*){4}, …\. Give them"):
        ddp(torch.ones(1, 5), skip=tuple(range(2, 9))).sum().backward()


def test_errors_are_one_clear_sentence() -> None:
    def refused(**arguments: Any) -> str:
        with pytest.raises((ValueError, RuntimeError)) as caught:
            BucketedDDP(arguments.pop("module", nn.Linear(2, 2)), communicator=Wire(), **arguments)
        return str(caught.value)

    assert "0 bytes" in refused(bucket_cap_mb=0) and "-1" in refused(bucket_cap_mb=-1)
    assert "0 bytes" in refused(first_bucket_mb=0)
    assert "nothing to average" in refused(module=nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(ValueError, match="more than 0 bytes, not -4"):
        plan_buckets([torch.ones(1)], 10, -4)
    with pytest.raises(ValueError, match="process group"):
        BucketedDDP(nn.Linear(2, 2))  # no ranks here


def test_sparse_gradients_are_refused_in_words() -> None:
    ddp = BucketedDDP(nn.Embedding(5, 3, sparse=True), communicator=Wire())
    with pytest.raises(RuntimeError, match="sparse") as caught:
        ddp(torch.tensor([1, 2])).sum().backward()
    assert "INTERNAL ASSERT" not in str(caught.value)


def test_megabytes_are_mebibytes_as_in_torch() -> None:
    assert MB == 1024 * 1024
