"""What the exercises share: sentences for known mistakes, drawn tensors, and how a backward pass is played."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from utils.checks.contracts import Facts

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
CUT = "has lost its way back: nothing before it will get a gradient"


def randn(generator: Generator, shape: Sequence[int], dtype: Any) -> Tensor:
    """Normal numbers that are the same in each type."""
    import torch

    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)


def rounds(*leaves: Tensor) -> Iterator[int]:
    """The first round begins without gradients, the others with those of a step before, to which autograd adds."""
    import torch

    for number in range(ROUNDS):
        for one in leaves:
            one.grad = torch.full_like(one, BEFORE) if number else None
        yield number


def note_gradients(facts: Facts, **leaves: Tensor) -> None:
    """Copies of what has arrived in this round, by the names of the leaves."""
    before = BEFORE if "gradients" in facts else 0.0
    facts["gradients"] = {
        name: None if one.grad is None else one.grad.detach() - before for name, one in leaves.items()
    }


def usable(facts: Facts, name: str, tensor: Any) -> bool:
    """Note what came back, and whether a backward pass can begin there."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        facts[name] = None
        return False
    facts |= {name: tensor.detach().clone(), "connected": tensor.requires_grad}
    return bool(tensor.requires_grad)


def world_sizes(played: Sequence[tuple[dict[str, Any], Any]]) -> str:
    """For the figures: on how many ranks."""
    return ", ".join(str(count) for count in dict.fromkeys(case["ranks"] for case, _ in played))
