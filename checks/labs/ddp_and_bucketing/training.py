"""What the exercises of this lab share: steps of training that are watched, and what hides behind backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checks.engine import leaves, refuse, same, watched
from checks.labs.ddp_and_bucketing import networks

LAB = "ddp_and_bucketing"
SIZE = "/= dist.get_world_size()"
MEANS = {  # mistakes of any average
    "the gradients are sums over the ranks: divide by the world size": {SIZE: "/= 1"},
    "the gradients are divided by the world size twice": {SIZE: SIZE + " ** 2"},
    "the gradients are divided by 2, whatever the world size is": {SIZE: "/= 2"},
}
BOTH = "float64 and float32"  # types in one model


@dataclass
class Step:
    """What a step has done: gradients by name (None: there is none), and the all-reduces in their order."""

    gradients: dict[str, torch.Tensor | None]
    calls: list[dict[str, Any]]
    ready: list[nn.Parameter]
    right: bool  # on all ranks, the gradients are the means

    def told(self, about: str) -> dict[str, Any]:
        """For what ``play`` returns."""
        changed = sum(one["changed"] for one in self.calls)
        found = {f"{about}, the tensors that are changed between the start of their all_reduce and its wait()": changed}
        return found | {f"{about}, the gradient of `{name}`": one for name, one in self.gradients.items()}


class Trained:
    """A model, and a twin of it that no learner's code has seen."""

    def __init__(self, model: networks.Branched, wrap: Callable[..., Any] = lambda model: None) -> None:
        self.model, self.twin = model, networks.twin(model)
        for _, parameter in networks.trainable(model):  # before the learner's hooks, so that these come later
            parameter.register_hook(lambda _, parameter=parameter: self._mark(parameter))
        self.wrapped = wrap(model)

    def _mark(self, parameter: nn.Parameter) -> None:
        self.ready.append(parameter)
        self.seen.mark()

    def step(self, number: int, finish: Callable[[], Any], prepare: Any = None, used: Any = None) -> Step:
        """Backward, and what a learner's code does before it (``prepare``), in it and after it (``finish``).

        Args:
            number: of the step; each rank has rows of its own.
            used: for each rank, the branches that its loss needs; None: all of them.
        """
        self.ready = []
        loss = self._loss(self.model, number, dist.get_rank(), used)
        if prepare:
            networks.thrown_away(self.model)
            loss = networks.tangled(loss)
        backwards: list[Any] = []
        loss.register_hook(backwards.append)
        with kept(self.model), watched(["all_reduce"]) as self.seen:
            if prepare:
                prepare(loss)
            loss.backward()
            self.seen.mark()  # (what starts later has one more than there are gradients)
            finish()
        words = "backward runs twice through the graph, once to see what is used: only walk through its nodes"
        refuse(len(backwards) != 1, words)
        right = torch.tensor(int(same(gradients(self.model), self._means(number, used))))
        dist.all_reduce(right, op=dist.ReduceOp.MIN)
        return Step(gradients(self.model), self.seen.calls, self.ready, bool(right))

    def _loss(self, model: networks.Branched, number: int, rank: int, used: Any) -> torch.Tensor:
        """Of a rank, and no gradients are left of the step before."""
        for parameter in model.parameters():
            parameter.grad = None
        model.order = used[rank] if used else model.order
        return networks.loss(model, 100 * number + rank)

    def _means(self, number: int, used: Any) -> dict[str, torch.Tensor | None]:
        every, ranks = [], dist.get_world_size()
        for rank in range(ranks):
            self._loss(self.twin, number, rank, used).backward()
            every.append(gradients(self.twin))
        there = {name: [one[name] for one in every if one[name] is not None] for name in every[0]}
        return {name: sum(terms) / ranks if terms else None for name, terms in there.items()}


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in model.named_parameters()}


@contextlib.contextmanager
def kept(model: nn.Module, numbers: bool = True) -> Iterator[None]:
    """Around a learner's call: of the model, nothing but gradients changes, or with ``numbers=False`` numbers too."""
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())

    def state() -> dict[str, Any]:
        return {
            "numbers of parameters or buffers": [one.detach().tolist() for one in tensors.values() if numbers],
            "the mode (train or eval) of a layer": [layer.training for layer in model.modules()],
            "`requires_grad`": [one.requires_grad for one in tensors.values()],
            "a tensor, or a tie: write into the tensors that are there": [
                one is tensors.get(name)
                for found in (model.named_parameters(remove_duplicate=False), model.named_buffers())
                for name, one in found
            ],
        }

    before = state()
    with leaves():
        yield
    changed = [what for what, now in state().items() if now != before[what]]
    refuse(changed, f"your code changes what has to stay: {' and '.join(changed)}")


def hidden(calls: Sequence[dict[str, Any]], last: int, buckets: Any = None) -> None:
    """Refuse, on all ranks at once, all-reduces that backward cannot hide.

    Args:
        last: how many gradients there are at the end of backward.
        buckets: those calls that are no flags; None: all of them.
    """
    words, buckets = "", calls if buckets is None else buckets
    if buckets and all(one["ready"] > last for one in buckets):
        words = "this is a blocking DDP: the first all_reduce starts when backward has ended. Launch it in a hook"
    elif any(not one["asynchronous"] and one["ready"] < last for one in calls):
        words = "all_reduce is called without async_op=True before backward has ended, which stands still until then"
    elif any(one["waited"] < last for one in calls):
        words = "waits for an all_reduce before backward has ended, which then stands still: wait in finish()"
    every = [""] * dist.get_world_size()
    dist.all_gather_object(every, words)
    words = next(filter(None, every), "")
    refuse(words, words)


def flags(calls: Sequence[dict[str, Any]], parameters: int) -> None:
    """Refuse flags of more than 8 bytes for each trainable parameter, and sums that would overflow."""
    kinds = ("uint8", "int8", "bool")
    words = "flags are added up in one byte each (gloo adds bools so, too): with 256 ranks the sum is 0 again. Take a "
    refuse(any(one["operation"] == "SUM" and one["dtype"] in kinds for one in calls), words + "wider type, or MAX")
    most = max((one["bytes"] for one in calls if "float" not in one["dtype"]), default=0)
    words = "the flags take more than 8 bytes for each trainable parameter (frozen ones need none)"
    refuse(most > 8 * parameters, words, measured=most, expected=f"at most {8 * parameters}")
