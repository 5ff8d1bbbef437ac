"""What the exercises share: sentences for known mistakes, drawn tensors, and how a backward pass is played."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from utils.checks.contracts import Broken, Case, Facts

    Judge = Callable[[Case, Sequence[Facts]], Iterator[Broken]]

GRADIENTS = ("*.grad", "*.grad.*")
REFUSED = tuple(f"torch.distributed.nn.functional.{name}" for name in ("all_gather", "all_reduce", "reduce_scatter"))
ROUNDS = 2  # so often each case is played with the same tensors: what an answer keeps from before shows then
BEFORE = 0.5  # each number of a gradient that is there already
ROUNDINGS = 400  # about how many follow each other in one of these exercises
MISTAKES: tuple[tuple[str, str], ...] = (
    ("wire:disagree", "{}. All ranks have to call the same, on tensors of the same size, in the same order"),
    ("wire:hidden", "{}"),
    ("state:*", "{}"),
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
            if broken := list(judge(case, [of_rank[number] for of_rank in played])):
                again = "in the second round, on the same tensors with other numbers, " if number else ""
                yield from (replace(one, sentence=again + one.sentence, call=number) for one in broken)
                return

    return judged


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
        facts |= {name: None, "connected": True}  # (that it is missing says enough)
        return False
    facts |= {name: tensor.detach().clone(), "connected": tensor.requires_grad}
    return bool(tensor.requires_grad)


def world_sizes(played: Sequence[tuple[dict[str, Any], Any]]) -> str:
    """For the figures: on how many ranks."""
    return ", ".join(str(count) for count in dict.fromkeys(case["ranks"] for case, _ in played))
