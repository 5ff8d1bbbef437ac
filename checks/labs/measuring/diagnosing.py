"""Check of ``diagnose``: one late rank among others that are not alike either."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median
from typing import Any

from checks.engine import Reference, exercise, leaves, refuse
from checks.engine.plain import from_array, shorten

Span = tuple[str, float, float]
OFFICIAL = Reference("measuring", "diagnose", {
    "it is the rank whose all-reduce is longest: that one was ready first, and waits":
        {"last = max(": "last = min("},
    "it is the rank that computes longest, which need not be the last":
        {'parts[rank]["ready"])': 'parts[rank]["compute"])'},
    "the cause is what takes this rank longest: compare with the other ranks":
        {"max(more, key=more.get)": "max(more, key=parts[last].get)"},
    "what would be won counts from the median of the others, and the next slowest still holds up all":
        {'max(one["ready"] for one in others)': 'median(one["ready"] for one in others)'},
    "what would be won counts from the quickest rank, and the next slowest still holds up all":
        {'max(one["ready"] for one in others)': 'min(one["ready"] for one in others)'},
    "gaps before the first span are left out: the host was late there, too":
        {'ready - sum(found.values())': 'ready - min(b for _, b, _ in spans) - sum(found.values())'},
})  # fmt: skip


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """A step of each rank: whole milliseconds, one rank with a clear fault, the others with small ones."""
    count = 8 if number == 0 else rng.randint(2, 12)
    late, cause = rng.randrange(count), rng.choice(("data", "compute", "launch"))
    extra = rng.randint(15, 40)
    while True:
        sums = []
        for rank in range(count):
            own = {"data": 5 + rng.randint(0, 8), "compute": 60 + rng.randint(0, 8), "launch": 6 + rng.randint(0, 6)}
            own[cause] += extra * (rank == late)
            own[rng.choice(("data", "compute", "launch"))] += (extra // 3) * (number > 0)
            sums.append(own)
        ready = sorted(sum(own.values()) for own in sums)
        clear = number == 0 or _margin(sums, late) >= 3
        if ready[-1] - ready[-2] >= 2 and sum(sums[late].values()) == ready[-1] and clear:
            break
    end = ready[-1] + rng.randint(2, 9)
    return {"ranks": [_spans(own, end, rng, number) for own in sums]}


def _margin(sums: list[dict[str, int]], late: int) -> float:
    """How much clearer the cause is than the next, against the median of the others."""
    more = [sums[late][name] - median(one[name] for r, one in enumerate(sums) if r != late) for name in sums[late]]
    return sorted(more)[-1] - sorted(more)[-2]


def _spans(own: dict[str, int], end: int, rng: random.Random, number: int) -> list[Span]:
    """Some gaps, the batch, kernels with gaps between them, the all-reduce; then shuffled."""
    kernels = rng.randint(2, 5)
    cuts = sorted(rng.sample(range(1, own["compute"]), kernels - 1))
    lengths = [b - a for a, b in zip([0, *cuts], [*cuts, own["compute"]], strict=True)]
    gaps = [0] * (kernels + 1)
    for _ in range(own["launch"]):
        gaps[rng.randrange(kernels + 1)] += 1
    now, spans = gaps[0], []
    spans.append(("data", now, now + own["data"]))
    now += own["data"]
    for length, gap in zip(lengths, gaps[1:], strict=True):
        spans.append(("compute", now, now + length))
        now += length + gap
    spans.append(("all-reduce", now, end))
    if number > 0:
        rng.shuffle(spans)
    return spans


@exercise(OFFICIAL, draw, title="Which rank, and why", difficulty=2, minutes=25, timeout=30)
def diagnose(case: dict[str, Any], diagnose: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``diagnose(ranks)``."""
    with leaves(ranks=case["ranks"]):
        found = diagnose(case["ranks"])
    fine = isinstance(found, tuple | list) and len(found) == 3
    refuse(not fine, "the result is not three things: (rank, cause, won)", measured=shorten(found))
    rank, cause, won = (from_array(one) for one in found)
    return {"the rank": rank, "the cause": cause, "what would be won": won}
