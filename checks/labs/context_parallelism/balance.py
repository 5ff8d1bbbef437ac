"""Check of ``zigzag``: every rank has as much to look at, in few pieces, and all of it finds its place again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch

from checks.engine import Reference, exercise, leaves, refuse
from checks.engine.plain import from_array, kind_of, number, shorten

PIECES = "[pieces[rank], pieces[2 * ranks - 1 - rank]]"
OFFICIAL = Reference("context_parallelism", "my_tokens together", {
    "each rank has one stretch of a document: the last ranks have much more to look at than the first":
        {PIECES: "[pieces[2 * rank], pieces[2 * rank + 1]]"},
    "the whole sequence is cut by zig-zag, and not each of its documents": {"in lengths:": "in [sum(lengths)]:"},
    "tokens are dealt out one by one: each piece is a single token":
        {PIECES: "[torch.arange(start, start + length)[rank::ranks]]"},
    "tokens are dealt out one by one, there and back: the work is balanced, and each piece is a single token":
        {PIECES: "[torch.arange(start, start + length)[one :: 2 * ranks] for one in (rank, 2 * ranks - 1 - rank)]"},
    "a rank has a piece from the front and one half of the pieces later, not its mirror image":
        {PIECES: "[pieces[rank], pieces[rank + ranks]]"},
    "places are counted in each document from 0 on, and not in the whole sequence": {"start += length": "pass"},
    "together puts the ranks' parts one behind the other": {"[:, order.argsort()]": ""},
    "together permutes once more where it should permute back": {"order.argsort()": "order"},
})  # fmt: skip


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """One document; then several, of any multiples of 2N."""
    ranks = 3 if number == 0 else rng.choice((1, 2, 3, 4, 5))
    lengths = [2 * ranks * rng.randint(1, 4) for _ in range(1 if number < 2 else rng.randint(1, 4))]
    return {"ranks": ranks, "lengths": lengths, "seed": rng.randrange(2**31)}


@exercise(OFFICIAL, draw, title="Zig-zag, there and back", difficulty=2, minutes=20, timeout=30)
def zigzag(case: dict[str, Any], my_tokens: Callable[..., Any], together: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``my_tokens(lengths, rank, ranks)`` and ``together(parts, lengths)``."""
    ranks, lengths = case["ranks"], case["lengths"]
    with leaves(lengths=lengths):
        results = [my_tokens(lengths, rank, ranks) for rank in range(ranks)]
    places = [_places(result, sum(lengths)) for result in results]
    times = Counter(place for mine in places for place in mine)
    starts = [0, *accumulate(lengths)]
    sees = [place + 1 for length in lengths for place in range(length)]
    pieces = max(sum(after != before + 1 for before, after in pairwise([-2, *sorted(mine)])) for mine in places)
    seen: dict[str, Any] = {
        "how many ranks have each token": [times[place] for place in range(starts[-1])],
        "pairs of query and key on each rank": [sum(sees[place] for place in mine) for mine in places],
        "tokens on each rank": list(map(len, places)),
        "pieces of a rank, beyond two of each document": max(0, pieces - 2 * len(lengths)),
    }
    torch.manual_seed(case["seed"])
    shape = 2, starts[-1], *torch.randint(1, 4, (case["seed"] % 3,)).tolist()
    whole = torch.randint(10**6, shape) if case["seed"] % 2 else torch.randn(shape)
    parts = [whole[:, mine] for mine in places]
    with leaves(parts=parts, lengths=lengths):
        result = together(parts, lengths)
    refuse(not isinstance(result, torch.Tensor), "together does not return a tensor", measured=kind_of(result))
    return seen | {"what together returns": result}


def _places(result: Any, length: int) -> list[int]:
    """The places that a rank has, out of a tensor, an array, a list or a range."""
    result = from_array(result)
    found = [number(from_array(one), whole=True) for one in result] if isinstance(result, list | tuple | range) else []
    words = "my_tokens does not return a rank's places in the sequence, whole numbers in one row"
    refuse(not found or None in found, words, measured=shorten(result))
    outside = [place for place in found if not 0 <= place < length]
    refuse(outside, f"my_tokens returns a place that is not in the sequence of {length} tokens", measured=outside[:1])
    return found
