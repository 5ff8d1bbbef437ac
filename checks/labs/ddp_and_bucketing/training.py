"""What the exercises of this lab and the next share: steps of training that are watched, mistakes of any average."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checks.engine import leaves, refuse, watched
from checks.labs.ddp_and_bucketing import networks

LAB = "ddp_and_bucketing"
SIZE = "/= dist.get_world_size()"
MEANS = {  # mistakes of any average
    "the gradients are sums over the ranks: divide by the world size": {SIZE: "/= 1"},
    "the gradients are divided by the world size twice": {SIZE: SIZE + " ** 2"},
}
BOTH = "float64 and float32"  # types in one model


@dataclass
class Step:
    """What a step has done: gradients by name (None: there is none), its all-reduces in order, how many are ready."""

    gradients: dict[str, torch.Tensor | None]
    calls: list[dict[str, Any]]
    ready: int

    def told(self, about: str) -> dict[str, Any]:
        """For what ``play`` returns."""
        changed = sum(call["changed"] for call in self.calls)
        label = f"{about}, the tensors that are changed between the start of their all_reduce and its wait()"
        return {label: changed} | {f"{about}, the gradient of `{name}`": one for name, one in self.gradients.items()}


class Trained:
    """A model in training: ``wrapped`` is the learner's object."""

    def __init__(self, model: networks.Branched, wrap: Callable[..., Any] = lambda model: None) -> None:
        self.model = model
        for _, parameter in networks.trainable(model):  # before the learner's hooks, so that these come later
            parameter.register_hook(lambda _: self._mark())
        self.wrapped = wrap(model)

    def _mark(self) -> None:
        self.ready += 1
        self.seen.mark()

    def step(self, number: int, finish: Callable[[], Any], prepare: Any = None, used: Any = None) -> Step:
        """Backward, and what a learner's code does before it (``prepare``), in it and after it (``finish``).

        Args:
            number: of the step; each rank has rows of its own.
            used: for each rank, the branches that its loss needs; None: all of them.
        """
        self.ready = 0
        for parameter in self.model.parameters():
            parameter.grad = None
        self.model.order = used[dist.get_rank()] if used else self.model.order
        loss = networks.loss(self.model, 100 * number + dist.get_rank())
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
        return Step(gradients(self.model), self.seen.calls, self.ready)


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in model.named_parameters()}


@contextlib.contextmanager
def kept(model: nn.Module, numbers: bool = True) -> Iterator[None]:
    """Around a learner's call: of the model, nothing but gradients changes, or with ``numbers=False`` numbers too."""
    there = [*model.parameters(), *model.buffers()]  # (kept alive, so that no other gets the id of one of them)

    def state() -> dict[str, Any]:
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
        return {
            "numbers of parameters or buffers": [one.detach().tolist() for one in there if numbers],
            "the mode (train or eval) of a layer": [layer.training for layer in model.modules()],
            "`requires_grad`": [one.requires_grad for one in there],
            "a tensor, or a tie: write into the tensors that are there": [(name, id(one)) for name, one in named],
        }

    before = state()
    with leaves():
        yield
    changed = [what for what, now in state().items() if now != before[what]]
    refuse(changed, f"your code changes what has to stay: {' and '.join(changed)}")


def hidden(calls: Sequence[dict[str, Any]], last: int, buckets: Any = None) -> None:
    """Refuse all-reduces that backward cannot hide.

    Args:
        last: how many gradients there are at the end of backward.
        buckets: those calls that are no flags; None: all of them.
    """
    buckets = calls if buckets is None else buckets
    words = "this is a blocking DDP: the first all_reduce starts when backward has ended. Launch it in a hook"
    refuse(buckets and all(one["ready"] > last for one in buckets), words)
    words = "all_reduce is called without async_op=True before backward has ended, which stands still until then"
    refuse(any(not one["asynchronous"] and one["ready"] < last for one in calls), words)
    words = "waits for an all_reduce before backward has ended, which then stands still: wait in finish()"
    refuse(any(one["waited"] < last for one in calls), words)


def flags(calls: Sequence[dict[str, Any]], parameters: int) -> None:
    """Refuse flags of more than 8 bytes for each trainable parameter, and sums that would overflow."""
    kinds = ("uint8", "int8", "bool")
    words = "flags are added up in one byte each (gloo adds bools so, too): with 256 ranks the sum is 0 again. Take a "
    refuse(any(one["operation"] == "SUM" and one["dtype"] in kinds for one in calls), words + "wider type, or MAX")
    most = max((one["bytes"] for one in calls if "float" not in one["dtype"]), default=0)
    words = "the flags take more than 8 bytes for each trainable parameter (frozen ones need none)"
    refuse(most > 8 * parameters, words, measured=most, expected=f"at most {8 * parameters}")
