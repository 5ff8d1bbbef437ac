"""How the checks of this lab compare gradients and parameters with those of one process, and guess what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from utils.checks.compare import expect
from utils.checks.verdicts import Wrong

if TYPE_CHECKING:
    from torch import Tensor

Facts = dict[str, Any]
# Relative to the largest element of a gradient. The ranks and one process add up in different orders, which changes the
# last of 16 digits (float64) or of 7 (a model with a part in float32): this is a thousand times more.
FINE, COARSE = 1e-12, 1e-4


def judge_gradients(facts: Sequence[Facts], where: str, parts: int = 1) -> None:
    """The gradients in ``gradients`` are those in ``right``; ``own`` says what each rank had by itself.

    Args:
        parts: into how many micro-batches each rank's batch is cut.
    """
    tolerance = _tolerance(facts[0]["right"])
    for rank, one in enumerate(facts):
        for name, right in one["right"].items():
            got = one["gradients"].get(name)
            if right is None:
                if got is not None:
                    raise Wrong(
                        f"`{name}` has a gradient on rank {rank} though no rank has used it, or it is frozen: leave its"
                        " `.grad` None. (An optimizer moves a parameter whose gradient is zero: momentum, weight decay."
                        f") {where}",
                        measured=got,
                    )
                continue
            if got is None:
                raise Wrong(f"`{name}` has no gradient on rank {rank}: other ranks have used it. {where}.")
            if alike(got, right, tolerance):
                continue
            what = f"the gradient of `{name}` on rank {rank}"
            for guess, sentence in _guesses(facts, rank, name, right, parts):
                if guess is not None and alike(got, guess, tolerance):
                    raise Wrong(f"{what} {sentence}. {where}", measured=_norm(got), expected=_norm(right))
            slack = _slack(right, tolerance)
            expect(f"{what} is not that of one process with the whole batch. {where}", got, right, absolute=slack)


def _guesses(
    facts: Sequence[Facts], rank: int, name: str, right: Tensor, parts: int
) -> list[tuple[Tensor | None, str]]:
    """What a gradient may be in place of the mean of all ranks' own, and how to say so."""
    own = [other["own"].get(name) for other in facts]
    ranks = len(own)
    guesses: list[tuple[Tensor | None, str]] = [
        (right * ranks, f"is the sum over the ranks: divide by the world size, {ranks}"),
        (right / ranks, f"is divided by the world size twice, as if there were {ranks**2} ranks"),
        (own[rank], "is still this rank's own: the mean does not arrive in `.grad`"),
        (None if own[rank] is None else own[rank] / ranks, "is this rank's own, divided: the sum does not arrive"),
    ]
    users = sum(one is not None for one in own)
    if users < ranks:
        why = "is the mean over those ranks that used it: divide by the world size, for the others count as zero"
        guesses.insert(0, (right * ranks / users, why))
    if parts > 1:
        guesses += [
            (right / parts, f"is divided by the {parts} micro-batches, too: the training loop has done that"),
            (right * parts, f"is {parts} times too large: the gradients of the micro-batches add up by themselves"),
        ]
        last = [other["last"].get(name) for other in facts]
        if own[rank] is not None and None not in last:
            mixed = own[rank] - last[rank] + sum(last) / ranks
            guesses.append((mixed, "is averaged for the last micro-batch only: average what has added up in `.grad`"))
    return guesses


def alike(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and bool(((one - other).abs() <= _slack(other, tolerance)).all())  # a nan is not alike
    )


def _slack(right: Tensor, tolerance: float) -> float:
    return tolerance * float(right.abs().max())


def _tolerance(tensors: dict[str, Tensor | None]) -> float:
    return COARSE if any(str(t.dtype) == "torch.float32" for t in tensors.values() if t is not None) else FINE


def _norm(tensor: Tensor) -> str:
    return f"norm {float(tensor.double().norm()):.4g}"


def judge_parameters(facts: Sequence[Facts], where: str) -> None:
    """After training, all ranks hold what one process holds."""
    # Adam divides a gradient by its size, so rounding grows. A step of Adam is about 0.01, a hundred times more.
    slack = 1e-4 if _tolerance(facts[0]["trained"]) == COARSE else 1e-7
    for rank, one in enumerate(facts):
        for name, right in one["trained"].items():
            sentence = f"After training, `{name}` on rank {rank} is not that of one process. {where}"
            expect(sentence, one["parameters"][name], right, absolute=slack)
