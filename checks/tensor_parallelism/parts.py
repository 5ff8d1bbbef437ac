"""What the exercises share: sentences for known mistakes, drawn tensors, and how a backward pass is played."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checks.contracts import Broken

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from checks.contracts import Case, Facts

    Judge = Callable[[Case, Sequence[Facts]], Iterator[Broken]]

GRADIENTS = ("*.grad", "*.grad.*")
_READY = ("all_gather", "all_reduce", "reduce_scatter", *(f"_{name}.forward" for name in ("AllGather", "AllReduce")))
REFUSED = tuple(f"torch.distributed.nn.functional.{name}" for name in _READY)
ROUNDS = 2  # so often each case is played with the same tensors: what an answer keeps from before shows then
BEFORE = 0.5  # each number of a gradient that is there already
ROUNDINGS = 400  # about how many follow each other in one of these exercises
MISTAKES: tuple[tuple[str, str], ...] = (
    ("wire:disagree", "{}. All ranks have to call the same, on tensors of the same size, in the same order"),
    ("wire:hidden", "{}. (DTensor and _functional_collectives do that, and are refused)"),
    ("state:*", "{}"),
    # What is done to the process comes before what follows from it: with autograd off, results lose their way back.
    *((f"{kind}:*", "{}") for kind in ("starts", "writes", "around")),
    ("wire:unwaited *", "{}"),
    ("wire:changed *", "{}"),
)
BETWEEN = "a call in between"  # on other tensors, after a forward pass and before its backward pass
CUT = "has lost its way back: nothing before it will get a gradient"


def randn(generator: Generator, shape: Sequence[int], dtype: Any) -> Tensor:
    """Normal numbers that are the same in each type."""
    import torch

    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)


def rounds(facts: Facts, *leaves: Tensor) -> Iterator[int]:
    """The first round begins without gradients, the others with those of a step before, to which autograd adds.

    Between two rounds the leaves' numbers are halved in place, as an optimizer changes them. Each round has its facts.
    """
    import torch

    before, earlier = dict(facts), []
    for number in range(ROUNDS):
        if number:
            earlier.append({name: one for name, one in facts.items() if name != "earlier"})
            facts.clear()
        facts |= before | {"round": number, "earlier": earlier}
        for one in leaves:
            one.grad = torch.full_like(one, BEFORE) if number else None
            if number:
                with torch.no_grad():
                    one.mul_(0.5)
        yield number


def each_round(judge: Judge) -> Judge:
    """Judges the first round that is not as it should be."""

    def judged(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
        played = [[*facts.get("earlier", ()), facts] for facts in world]
        for number in range(min(map(len, played))):
            if broken := [*judge(case, facts := [of_rank[number] for of_rank in played]), *_overwritten(facts)]:
                again = "in the second round, on the same tensors with other numbers, " if number else ""
                yield from (replace(one, sentence=again + one.sentence, call=number) for one in broken)
                return

    return judged


def _overwritten(world: Sequence[Facts]) -> Iterator[Broken]:
    words = "the result has other numbers when the function has been called again: each call needs memory of its own"
    return (Broken("value:0 later", words, rank=rank) for rank, facts in enumerate(world) if facts.get("overwritten"))


def other_size(size: Sequence[int]) -> tuple[int, ...]:
    """As many numbers in another shape, of as many dimensions if these are three."""
    return math.prod(size[:-1]), 1, size[-1]


def inside(leaf: Tensor) -> Tensor:
    """The same numbers as they come inside a network: no leaf, so that a gradient has to travel on."""
    return leaf.view_as(leaf)


@contextlib.contextmanager
def meanwhile(facts: Facts, name: str, tensor: Tensor) -> Iterator[None]:
    """Note whether a result that was noted is still the same after the ``with`` block, where there are other calls."""
    from checks.contracts.snapshot import digest

    same = tensor.detach()
    yield
    facts["overwritten"] = digest(same) != digest(facts[name])


def note_gradients(facts: Facts, **leaves: Tensor) -> None:
    """Copies of what has arrived in this round, by the names of the leaves."""
    before = BEFORE if facts["round"] else 0.0
    facts["gradients"] = {
        name: None if one.grad is None else one.grad.detach() - before for name, one in leaves.items()
    }


def usable(facts: Facts, name: str, tensor: Any) -> bool:
    """Note what came back, and whether a backward pass can begin there."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        facts |= {name: None if tensor is None else type(tensor).__name__, "connected": True}  # (which says enough)
        return False
    facts |= {name: tensor.detach().clone(), "connected": tensor.requires_grad}
    return bool(tensor.requires_grad)


def world_sizes(played: Sequence[tuple[dict[str, Any], Any]]) -> str:
    """For the figures: on how many ranks."""
    return ", ".join(str(count) for count in dict.fromkeys(case["ranks"] for case, _ in played))
