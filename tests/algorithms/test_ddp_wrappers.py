"""Our DDP wrapped, saved, copied and wrapped again; after errors, which are one clear sentence, it goes on."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from ddp_support import SMALL, Broken, Steps, Wire, averaged, gradients, inputs, on_ranks, same
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lessons.algorithms.ddp import BucketedDDP, plan_buckets
from utils.ranks.failures import RankError
from utils.ranks.recorder import record_collectives

pytestmark = pytest.mark.numeric

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the functions here run on ranks


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


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps])
def test_a_copy_of_a_wrapper_would_have_no_hooks_so_it_is_refused(how: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"BucketedDDP cannot be copied or pickled: copy its \.module"):
        how(BucketedDDP(nn.Linear(2, 2), communicator=Wire()))


# ---------------------------------------------------------------------- errors
def after_an_error() -> dict[str, Any]:
    rank, found = dist.get_rank(), {}
    torch.manual_seed(rank)

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
