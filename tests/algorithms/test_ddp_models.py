"""Our DDP takes parameters of every type and shape, and models and losses of any form."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from ddp_support import OPTIMIZERS, SMALL, averaged, gradients, inputs, on_ranks, same
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lessons.algorithms.ddp import BucketedDDP
from utils.ranks.recorder import record_collectives

pytestmark = pytest.mark.numeric

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the functions here run on ranks


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


def test_outputs_of_any_form_checkpointing_and_buffers_used_twice() -> None:
    for found in on_ranks(kinds_of_models):
        assert all(found.values()), [name for name, right in found.items() if not right]
