"""Are samples what random search draws: log-uniform, each batch size equally often, each independent of all others?

Each bound is passed by right samples but once in a million times or so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from checks.engine import refuse
from checks.labs.ray_and_tuning.searches import Call, Search, place

MANY = 200  # in fewer samples, everything may happen that looks like a grid or a pattern
PARTS = 25  # with 40 of the 1,000 samples in each
RARE = 1e-6
MOST_UNEVEN, LEAST_UNEVEN, MOST_CORRELATED = 2.8, 0.28, 5.0
SHARES = "learning rates are not log-uniform: each part of the exponents' range should get its share"


def judge_samples(search: Search, calls: Sequence[Call]) -> None:
    """Refuse what is first wrong with the samples; what is about patterns is asked of many samples only."""
    places = [place(search, call.config["lr"]) for call in calls]
    sizes = [search.batch_sizes.index(call.config["batch_size"]) for call in calls]
    _repeats(places, calls)
    _rates(search, places, calls)
    _sizes(search, sizes)
    if len(calls) >= MANY:
        _independence(places, sizes, len(search.batch_sizes))
    known = {round(value, 9) for value in places}
    mirrored = sum(round(1 - value, 9) in known for value in places) > 0.1 * len(calls)
    refuse(mirrored, "learning rates mirror others: draw each anew, from the whole range")


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


def _repeats(places: Sequence[float], calls: Sequence[Call]) -> None:
    distinct, whole = len({round(value, 12) for value in places}), "draw each from the whole range, and round none"
    words = (
        f"the {len(calls)} learning rates are all the same: is the generator made anew, or its seed set, in the loop?"
    )
    refuse(distinct == 1 < len(calls), words)
    again, figures = distinct < 0.9 * len(calls), {"measured": f"{distinct} different ones", "expected": len(calls)}
    refuse(again, f"learning rates come again: {whole}", **figures)
    rounded = all(call.config["lr"] == float(f"{call.config['lr']:.1e}") for call in calls)
    refuse(rounded, f"all learning rates have one or two digits: {whole}", measured=calls[-1].config["lr"])


def _rates(search: Search, places: Sequence[float], calls: Sequence[Call]) -> None:
    number = len(places)
    uniform = [(call.config["lr"] - search.low) / (search.high - search.low) for call in calls]
    above = sum(value > 0.8 for value in places) / number
    # (The mean of uniform places, in its own deviations, sees a slight slope better than the largest distance.)
    aside = abs(sum(places) / number - 0.5) * math.sqrt(12 * number)
    if unevenness(places) > MOST_UNEVEN or aside > MOST_CORRELATED:
        halves = [unevenness(places[: number // 2]), unevenness(places[number // 2 :])]
        words = SHARES
        if unevenness(uniform) < min(MOST_UNEVEN, unevenness(places) / 2):
            words = "learning rates are uniform, not log-uniform: each power of ten should get its equal share"
        elif halves[1] > 1.5 * halves[0]:
            words = "later samples crowd in one place: in random search no sample depends on the losses of earlier ones"
        refuse(True, words, measured=f"{above:.0%} in the highest fifth of the exponents", expected="20%")
    words = "learning rates have equal distances: that is a grid (or one sample in each of its parts), not "
    refuse(number >= MANY and unevenness(places) < LEAST_UNEVEN, f"{words}independent samples")

    def between(start: float, end: float) -> str:
        return " to ".join(f"{search.low * (search.high / search.low) ** one:.3g}" for one in (start, end))

    width, start = max((later - one, one) for one, later in pairwise((0.0, *sorted(places), 1.0)))
    words = f"none of {number:,} learning rates is in the range {between(start, start + width)}: draw from all of it"
    hole = (number + 1) * (1 - width) ** number < RARE
    refuse(hole, words, measured="none", expected=f"about {number * width:.0f}")
    counts = Counter(min(int(PARTS * value), PARTS - 1) for value in places)
    if number >= MANY and too_uneven([counts[part] for part in range(PARTS)]):
        part = max(range(PARTS), key=lambda one: abs(counts[one] - number / PARTS))
        measured = f"{counts[part]} in {between(part / PARTS, (part + 1) / PARTS)}"
        refuse(True, SHARES, measured=measured, expected=f"about {number / PARTS:.0f}")


def _sizes(search: Search, sizes: Sequence[int]) -> None:
    counts = [sizes.count(index) for index in range(len(search.batch_sizes))]
    never = len(counts) * (1 - 1 / len(counts)) ** len(sizes)  # how likely right samples lack one
    told = ", ".join(f"{size}: {count}" for size, count in zip(search.batch_sizes, counts, strict=True))
    figures = {"measured": told, "expected": f"about {len(sizes) / len(counts):.0f} each"}
    refuse(too_uneven(counts) or (0 in counts and never < RARE), "batch sizes are not equally likely", **figures)


def _independence(places: Sequence[float], sizes: Sequence[int], kinds: int) -> None:
    cells = Counter((int(min(value, 0.999) * 5), size) for value, size in zip(places, sizes, strict=True))
    both = too_uneven([cells[part, size] for part in range(5) for size in range(kinds)])
    words = "learning rate and batch size depend on each other: draw a new number for each of them"
    refuse(both or abs(correlation(places, sizes)) > MOST_CORRELATED, words)
    following = Counter(pairwise(sizes))
    words = "batch sizes are dealt out, in turn or in blocks, and not drawn: no sample depends on the one before"
    again = f"{sum(n for (a, b), n in following.items() if a == b)} the same as before"
    dealt = too_uneven([following[one, other] for one in range(kinds) for other in range(kinds)])
    refuse(dealt, words, measured=again, expected=f"about {len(sizes) / kinds:.0f}")
    walk = abs(correlation(places[:-1], places[1:])) > MOST_CORRELATED
    refuse(walk, "a learning rate depends on the one before it: draw each from the whole range")
