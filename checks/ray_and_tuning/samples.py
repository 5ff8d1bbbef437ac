"""Are samples what random search draws: log-uniform, each batch size equally often, each independent of all others?

Each bound is passed by right samples but once in a million times or so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from checks.contracts import Broken
from checks.ray_and_tuning.searches import Call, Search, place

MANY = 200  # in fewer samples, everything may happen that looks like a grid or a pattern
PARTS = 25  # with 40 of the 1,000 samples in each
RARE = 1e-6
MOST_UNEVEN, LEAST_UNEVEN, MOST_CORRELATED = 2.8, 0.28, 5.0


def judge_samples(search: Search, calls: Sequence[Call]) -> Iterator[Broken]:
    """The first thing that is wrong with many samples."""
    parts = (_repeats, _rates, _sizes, _independence, _mirrored)
    yield from next((found for part in parts if (found := list(part(search, calls)))), ())


def unevenness(values: Sequence[float]) -> float:
    """Kolmogorov and Smirnov's distance of values from a uniform distribution on 0 to 1, times √n."""
    number = len(values)
    steps = enumerate(sorted(values))
    return math.sqrt(number) * max(max((i + 1) / number - value, value - i / number) for i, value in steps)


def correlation(ones: Sequence[float], others: Sequence[float]) -> float:
    """The correlation times √n: about a normal deviate where values are independent."""
    number = len(ones)
    mean, other_mean = sum(ones) / number, sum(others) / number
    ones, others = [one - mean for one in ones], [other - other_mean for other in others]
    size = math.sqrt(sum(one * one for one in ones) * sum(other * other for other in others))
    return math.sqrt(number) * sum(a * b for a, b in zip(ones, others, strict=True)) / size if size else 0.0


def too_uneven(counts: Sequence[int]) -> bool:
    """Chi-square of equally likely cells, by Wilson and Hilferty's approximation: beyond five deviates."""
    free, share = len(counts) - 1, sum(counts) / len(counts)
    if not free:
        return False
    chi = sum((count - share) ** 2 for count in counts) / share
    return ((chi / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free)) > MOST_CORRELATED


def _places(search: Search, calls: Sequence[Call]) -> list[float]:
    return [place(search, call.config["lr"]) for call in calls]


def _repeats(search: Search, calls: Sequence[Call]) -> Iterator[Broken]:
    distinct = len({round(value, 12) for value in _places(search, calls)})
    if distinct == 1:
        words = "are all the same: is the generator made anew, or its seed set, in the loop?"
        yield Broken("value:same", f"the {len(calls)} learning rates {words}")
    elif distinct < 0.9 * len(calls):
        words = "learning rates come again: draw each anew from the whole range, and round none"
        yield Broken("value:again", words, f"{distinct} different ones", f"{len(calls)}")
    elif all(call.config["lr"] == float(f"{call.config['lr']:.1e}") for call in calls):
        words = "all learning rates have one or two digits: draw each from the whole range, and round none"
        yield Broken("value:rounded", words, f"{calls[-1].config['lr']}")


def _mirrored(search: Search, calls: Sequence[Call]) -> Iterator[Broken]:
    places = {round(value, 9) for value in _places(search, calls)}
    if sum(round(1 - value, 9) in places for value in places) > 0.1 * len(calls):
        yield Broken("value:again", "learning rates mirror others: draw each anew, from the whole range")


def _rates(search: Search, calls: Sequence[Call]) -> Iterator[Broken]:
    places = _places(search, calls)
    uniform = [(call.config["lr"] - search.low) / (search.high - search.low) for call in calls]
    above = sum(value > 0.8 for value in places) / len(places)
    figures = f"{above:.0%} in the highest fifth of the exponents", "20%"
    # (The mean of uniform places, in its own deviations, sees a slight slope better than the largest distance.)
    aside = abs(sum(places) / len(places) - 0.5) * math.sqrt(12 * len(places))
    if unevenness(places) > MOST_UNEVEN or aside > MOST_CORRELATED:
        halves = [unevenness(places[: len(places) // 2]), unevenness(places[len(places) // 2 :])]
        if unevenness(uniform) < min(MOST_UNEVEN, unevenness(places) / 2):
            words = "learning rates are uniform, not log-uniform: each power of ten should get its equal share"
            yield Broken("value:uniform", words, *figures)
        elif halves[1] > 1.5 * halves[0]:
            words = "later samples crowd in one place: in random search no sample depends on the losses of earlier ones"
            yield Broken("value:crowd", words, *figures)
        else:
            words = "learning rates are not log-uniform: each part of the exponents' range should get its share"
            yield Broken("value:uneven", words, *figures)
    elif len(places) >= MANY and unevenness(places) < LEAST_UNEVEN:
        words = "learning rates have equal distances: that is a grid (or one sample in each of its parts), not "
        yield Broken("value:grid", words + "independent samples")
    else:
        yield from _parts(search, places)


def _parts(search: Search, places: Sequence[float]) -> Iterator[Broken]:
    """Holes, and in many samples lumps within a power of ten."""

    def between(start: float, end: float) -> str:
        return " to ".join(f"{search.low * (search.high / search.low) ** one:.3g}" for one in (start, end))

    number = len(places)
    width, start = max((later - one, one) for one, later in pairwise((0.0, *sorted(places), 1.0)))
    if (number + 1) * (1 - width) ** number < RARE:
        words = (
            f"none of {number:,} learning rates is in the range {between(start, start + width)}: draw from all of it"
        )
        yield Broken("value:hole", words, "none", f"about {number * width:.0f}")
        return
    if number < MANY:
        return
    counts = Counter(min(int(PARTS * value), PARTS - 1) for value in places)
    if too_uneven([counts[part] for part in range(PARTS)]):
        part = max(range(PARTS), key=lambda one: abs(counts[one] - number / PARTS))
        words = "learning rates are not log-uniform: each part of the exponents' range should get its share"
        figures = f"{counts[part]} in {between(part / PARTS, (part + 1) / PARTS)}", f"about {number / PARTS:.0f}"
        yield Broken("value:lumps", words, *figures)


def _sizes(search: Search, calls: Sequence[Call]) -> Iterator[Broken]:
    counts = Counter(call.config["batch_size"] for call in calls)
    found = [counts[size] for size in search.batch_sizes]
    never = len(found) * (1 - 1 / len(found)) ** len(calls)  # how likely right samples lack one
    if too_uneven(found) or (0 in found and never < RARE):
        told = ", ".join(f"{size}: {counts[size]}" for size in search.batch_sizes)
        words = "batch sizes are not equally likely"
        yield Broken("value:sizes", words, told, f"about {len(calls) / len(found):.0f} each")


def _independence(search: Search, calls: Sequence[Call]) -> Iterator[Broken]:
    if len(calls) < MANY:
        return
    places, sizes = _places(search, calls), len(search.batch_sizes)
    indices = [search.batch_sizes.index(call.config["batch_size"]) for call in calls]
    cells = Counter((int(min(value, 0.999) * 5), index) for value, index in zip(places, indices, strict=True))
    if abs(correlation(places, indices)) > MOST_CORRELATED or too_uneven(
        [cells[part, index] for part in range(5) for index in range(sizes)]
    ):
        words = "learning rate and batch size depend on each other: draw a new number for each of them"
        yield Broken("value:both", words)
        return
    following = Counter(pairwise(indices))
    if too_uneven([following[one, other] for one in range(sizes) for other in range(sizes)]):
        words = "batch sizes are dealt out, in turn or in blocks, and not drawn: no sample depends on the one before"
        yield Broken("value:turn", words, f"{sum(n for (a, b), n in following.items() if a == b)} the same as before",
                     f"about {len(calls) / sizes:.0f}")  # fmt: skip
    if abs(correlation(places[:-1], places[1:])) > MOST_CORRELATED:
        yield Broken("value:walk", "a learning rate depends on the one before it: draw each from the whole range")
