"""Numbers against float64: how far rounding may take them, and what a mistake would have given instead."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from checks.contracts.contract import Broken

if TYPE_CHECKING:
    from torch import Tensor


def compare(
    clause: str,
    what: str,
    got: Any,
    terms: Sequence[Tensor],
    factor: float = 1.0,
    guesses: Mapping[str, Tensor] | None = None,
    steps: int = 0,
    coarsest: str = "",
    beside: Sequence[Tensor] = (),
    **where: Any,
) -> Iterator[Broken]:
    """``got`` has to be ``factor`` times the sum of ``terms``, whatever the order of summation.

    The bound: n terms need n - 1 additions and a factor, and each term may have been scaled before: each result is off
    by half a unit in the last place (u) at most, so the sum is off by (n + 1) u Σ|terms|. As much again is for the
    reference. A sum in a smaller type is off by millions of that. Where an infinity or NaN goes in, one
    has to come out.

    Args:
        clause: key of the broken clause, to which its kind is added.
        what: subject of the sentence, "the gradient of `first.weight`".
        steps: of numbers that come out of a whole network, about how many roundings follow each other; then the bound
            is as many units in the last place of the largest number, because small ones are differences of large ones.
        beside: other results of the same network; a small one may be the difference of numbers as large as theirs.
        coarsest: the type in which some of it is computed, if that is not the type of the result.
        guesses: what a likely mistake gives, by how to say it ("is the sum over the ranks: …").
        where: ``rank`` and ``call`` of the ``Broken``.
    """
    import torch

    if not isinstance(got, torch.Tensor):
        words = (
            "is missing" if got is None else f"is no tensor, but of type {got if isinstance(got, str) else type(got)}"
        )
        yield Broken(f"{clause}:none", f"{what} {words}", **where)
        return
    if got.shape != terms[0].shape or got.dtype != terms[0].dtype:
        measured, expected = (f"{list(one.shape)} {one.dtype}" for one in (got, terms[0]))
        yield Broken(f"{clause}:type", f"{what} has another shape or type", measured, expected, **where)
        return
    wide = [term.double() for term in terms]
    right, size = sum(wide) * factor, sum(term.abs() for term in wide) * abs(factor)
    if not bool((known := right.isfinite()).all()):  # such a number stays one: who makes another of it hides a fault
        if not torch.equal(got.double()[~known].nan_to_num(math.pi), right[~known].nan_to_num(math.pi)):
            words = f"{what} has other numbers where an infinity or NaN (not a number) goes in: one has to come out"
            yield Broken(f"{clause}:off", words, **where)
            return
        got, right, size = got[known], right[known], size[known]
        guesses = {words: guess[known] for words, guess in (guesses or {}).items()}
    unit = torch.finfo(getattr(torch, coarsest, got.dtype)).eps / 2
    if steps:
        size = max(float(one.abs().max()) for one in (size, *beside) if one.numel()) * steps * torch.ones_like(right)
    bound = (2 * len(terms) + 2) * unit * size + torch.finfo(got.dtype).tiny
    off = (got.double() - right).abs()
    if bool((off <= bound).all()):
        return
    for words, guess in (guesses or {}).items():
        guess = guess.double()
        if bool(((got.double() - guess).abs() <= bound + 8 * unit * guess.abs()).all()):
            yield Broken(f"{clause}:{words}", f"{what} {words}", _norm(got), _norm(right), **where)
            return
    if not bool(got.isfinite().all()):
        yield Broken(f"{clause}:off", f"{what} has numbers that are not finite", **where)
        return
    times = float((off / bound).max())
    narrower = 2.0 ** (29 if (coarsest or _name(got)) == "float64" else 16)  # times as coarse: float32, bfloat16
    if float(off.max()) > 8 * (worst := float(bound.max())) and _in_other_places(got.double(), right, worst):
        words = "has the right numbers, but in other places"
    elif float(off.norm()) <= 1e-2 * float(right.norm()) and times <= narrower:
        words = (
            f"is off by {times:.2g} times what rounding explains: is all of it computed in {coarsest or _name(got)}?"
        )
    else:
        words = "does not have the right numbers"
    yield Broken(f"{clause}:off", f"{what} {words}", _norm(got), _norm(right), **where)


def _in_other_places(got: Tensor, right: Tensor, bound: float) -> bool:
    return bool(((got.flatten().sort().values - right.flatten().sort().values).abs() <= bound).all())


def _norm(tensor: Tensor) -> str:
    return f"norm {float(tensor.double().norm()):.10g}"


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def in_steps(reads: Sequence[Sequence[int]], share: int) -> list[Sequence[int]]:
    """A worker's samples step by step, where it has read a step's share in several calls, one by one say."""
    if any(len(read) > share for read in reads):
        return list(reads)
    samples = [sample for read in reads for sample in read]
    return [samples[first : first + share] for first in range(0, len(samples), share)]
