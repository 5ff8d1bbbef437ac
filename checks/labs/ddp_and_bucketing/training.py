"""What the exercises of this lab and the next share: a network, watched steps of its training, likely mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checks.engine import leaves, refuse, watched

LAB = "ddp_and_bucketing"
SIZE = "/= dist.get_world_size()"
MEANS = {  # mistakes of any average
    "the gradients are sums over the ranks: divide by the world size": {SIZE: "/= 1"},
    "the gradients are divided by the world size twice": {SIZE: SIZE + " ** 2"},
}
BOTH = "float64 and float32"  # types in one model: every second branch is in float32


class Network(nn.Module):
    """A tied weight, a frozen layer, a scalar, a buffer of integers and one that is not saved, modes that are mixed.

    Attributes:
        order: the branches that the loss needs, in the order in which they run. The others run for nothing.
        gates: by what the outcome of each branch is multiplied.
        calls: the all-reduces of the last step.
        ready: how many gradients it had.
    """

    def __init__(self, seed: int, numbers: int | None = None, branches: int = 2, types: str = "float64") -> None:
        super().__init__()
        torch.manual_seed(seed if numbers is None else numbers)
        width = 3 + seed % 5
        self.factor, self.stem = nn.Parameter(torch.rand(()) + 0.5), nn.Linear(4, width)
        self.register_buffer("mask", torch.rand(width) + 0.5, persistent=False)
        self.register_buffer("counter", torch.randint(2**54, 2**55, (2,)))
        self.branches = nn.ModuleList(nn.Linear(width, width, bias=(seed + n) % 3 > 0) for n in range(branches))
        self.frozen = nn.Linear(width, width + 4).requires_grad_(False)
        self.square, self.again = nn.Linear(width + 4, width + 4, bias=False), nn.Linear(width + 4, width + 4)
        self.again.weight = self.square.weight
        self.to(getattr(torch, types.split()[0]))
        for branch in self.branches[1::2] if types == BOTH else ():
            branch.float()
        for number, module in enumerate(self.modules()):
            module.training = number % 2 == seed % 2
        self.order, self.gates, self.ready = list(range(branches)), [1.0] * branches, 0
        for parameter in self.parameters():
            if parameter.requires_grad:  # (before the learner's hooks, so that these come later)
                parameter.register_hook(lambda _: self._mark())

    def _mark(self) -> None:
        self.ready += 1
        self.wire.mark()

    def loss(self, seed: int, tangled: bool = False) -> torch.Tensor:
        """Of some rows; the graph may have 2**800 ways, and be deeper than Python's functions may call each other."""
        generator, dtype = torch.Generator().manual_seed(seed), self.stem.weight.dtype
        x = torch.randn(3, 4, generator=generator, dtype=dtype)
        x = outcome = torch.tanh(self.stem(x)) * self.mask * self.factor
        for number in dict.fromkeys([*self.order, *range(len(self.branches))]):
            branch = self.branches[number]
            y = torch.tanh(branch(x.to(branch.weight.dtype)))
            outcome = outcome + self.gates[number] * y.to(dtype) if number in self.order else outcome
        loss = self.again(torch.tanh(self.square(self.frozen(outcome)))).square().mean()
        for _ in range(800 if tangled else 0):
            loss = loss / 2 + loss / 2
        return loss

    def step(self, about: str, finish: Callable[[], Any], seed: int, prepare: Any = None, used: Any = None) -> Any:
        """What is seen of backward, with a learner's code before it (``prepare``), in it and after it (``finish``).
        Labels begin with ``about``; ``used`` are, for each rank, the branches that its loss needs, if not all."""
        self.zero_grad()
        self.ready, self.order = 0, used[dist.get_rank()] if used else self.order
        loss = self.loss(100 * seed + dist.get_rank(), tangled=prepare is not None)
        with self.kept(), watched(["all_reduce"]) as self.wire:
            if prepare:
                prepare(loss)
            refuse(self.ready, "prepare runs backward, to see what is used: only walk through the graph's nodes")
            loss.backward()
            self.wire.mark()  # (what starts later has one more than there are gradients)
            finish()
        self.calls = self.wire.calls
        label = f"{about}, the tensors that are changed between the start of their all_reduce and its wait()"
        return {label: sum(call["changed"] for call in self.calls)} | self.gradients(about)

    def gradients(self, about: str) -> dict[str, Any]:
        named = {f"{about}, the gradient of `{name}`": p.grad for name, p in self.named_parameters()}
        modes = {f"{about}, the layers in train mode": [name for name, one in self.named_modules() if one.training]}
        return modes | {label: None if one is None else one.clone() for label, one in named.items()}

    def kept(self) -> Any:
        """Around a learner's call: of the model, gradients alone may change."""
        named = [*self.named_parameters(), *self.named_buffers()]
        return leaves(**{name: one.detach() for name, one in named})


def hidden(calls: Sequence[dict[str, Any]], last: int, buckets: Any = None) -> None:
    """Refuse all-reduces that backward cannot hide. At its end there are ``last`` gradients; ``buckets``: no flags."""
    fault = "this is a blocking DDP: the first all_reduce starts when backward has ended. Launch it in a hook"
    refuse(calls and all(call["ready"] > last for call in buckets or calls), fault)
    fault = "all_reduce is called without async_op=True before backward has ended, which stands still until then"
    refuse(any(not call["asynchronous"] and call["ready"] < last for call in calls), fault)
    fault = "waits for an all_reduce before backward has ended, which then stands still: wait in finish()"
    refuse(any(call["waited"] < last for call in calls), fault)


def flags(calls: Sequence[dict[str, Any]], parameters: int) -> None:
    """Refuse flags of more than 8 bytes for each trainable parameter, and sums that would overflow."""
    narrow = [call for call in calls if call["dtype"] in ("uint8", "int8", "bool") and call["operation"] == "SUM"]
    fault = "flags are added up in one byte each (gloo adds bools so, too): with 256 ranks the sum is 0 again. Take a "
    refuse(narrow, fault + "wider type, or MAX")
    most = max((call["bytes"] for call in calls if "float" not in call["dtype"]), default=0)
    fault = "the flags take more than 8 bytes for each trainable parameter (frozen ones need none)"
    refuse(most > 8 * parameters, fault, measured=most, expected=f"at most {8 * parameters}")
