"""What every search of this lab is judged by: its budget, how samples are drawn, the best that it returns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from checks.engine import refuse
from checks.labs.ray_and_tuning.notes import Config

MANY = 200  # in fewer samples, everything may happen that looks like a grid or a pattern
MOST_UNEVEN, LEAST_UNEVEN, DEVIATES, RARE = 2.8, 0.28, 5.0, 1e-6  # right samples pass but once in a million times or so
ROUNDING = 1e-9  # so much a learning rate may be outside the range, as a part of it
AGAIN = "configurations are trained a second time: keep the loss that objective has returned"
SIZES_GRID = "every batch size is tried for each of the trials: that is a grid"
LOGARITHM = "a learning rate is a logarithm: draw the exponent, then raise to its power"
ALL_THE_SAME = "the learning rates are all the same: is the generator made anew, or its seed set, in the loop?"
UNIFORM = "learning rates are uniform, not log-uniform: each power of ten should get its equal share"
GRID = "learning rates have equal distances: that is a grid, not independent samples"
UNEQUAL_SIZES = "batch sizes are not equally likely"
DEPENDENT = "learning rate and batch size depend on each other: draw a new number for each of them"
DEALT = "batch sizes are dealt out in turn, not drawn: no sample depends on the one before"
DIVERGED = "a training that has diverged wins: nan is neither less nor greater than a number, so leave it out"
LAST, HIGHEST = "the last configuration is returned, not the best", "the highest loss wins"


@dataclass(frozen=True)
class Search:
    """One call of the learner's function."""

    low: float
    high: float
    batch_sizes: tuple[int, ...]
    trials: int
    seed: int
    most_epochs: int = 0  # of a trial, where a scheduler stops it


@dataclass
class Call:
    """One call of ``objective`` or ``train``: ``epochs`` more epochs for one trial, which has then had ``total``."""

    trial: Any
    config: Config
    epochs: int
    total: int
    loss: float
    pid: int


def place(search: Search, lr: float) -> float:
    """Where a learning rate lies on the logarithmic axis: 0 at low, 1 at high."""
    return math.log(lr / search.low) / math.log(search.high / search.low)


def judge_budget(search: Search, calls: Sequence[Call]) -> None:
    """One training for each trial."""
    number, words = len(calls), "the budget is one training for each trial"
    if number > search.trials and len({str(call.config) for call in calls}) == search.trials:
        words = AGAIN
    elif number == search.trials * len(search.batch_sizes):
        words = SIZES_GRID
    refuse(number != search.trials, words, measured=f"{number:,} trainings", expected=f"{search.trials:,}")


def judge_range(search: Search, calls: Sequence[Call]) -> None:
    """Learning rates between low and high, batch sizes of the list."""
    low, high = search.low, search.high
    rates = [call.config["lr"] for call in calls]
    lr = next((lr for lr in rates if not low * (1 - ROUNDING) <= lr <= high * (1 + ROUNDING)), None)
    if lr is not None:
        exponent = any(low <= base ** min(lr, 300) <= high for base in (10, math.e))
        words = LOGARITHM if exponent else "a learning rate is outside the range"
        refuse(True, words, measured=f"{lr:g}", expected=f"{low:g} to {high:g}")
    wrong = [size for call in calls if (size := call.config["batch_size"]) not in search.batch_sizes]
    refuse(wrong, "a batch size is not in the list", measured=str(wrong[:1]), expected=str(search.batch_sizes))


def judge_samples(search: Search, calls: Sequence[Call]) -> None:
    """Log-uniform learning rates, each batch size equally often; of many samples, each independent of all others."""
    number, places = len(calls), [place(search, call.config["lr"]) for call in calls]
    distinct = len({round(value, 12) for value in places})
    refuse(distinct == 1 < number, ALL_THE_SAME)
    words = "learning rates come again: draw each from the whole range"
    refuse(distinct < 0.9 * number, words, measured=f"{distinct} different ones", expected=number)
    uniform = [(call.config["lr"] - search.low) / (search.high - search.low) for call in calls]
    uneven = unevenness(places)
    refuse(uneven > MOST_UNEVEN and unevenness(uniform) < min(MOST_UNEVEN, uneven / 2), UNIFORM)
    figures = {"measured": f"{sum(value > 0.8 for value in places) / number:.0%} in the highest fifth of the exponents"}
    words = "learning rates are not log-uniform: each part of the exponents' range should get its share"
    refuse(uneven > MOST_UNEVEN, words, **figures, expected="20%")
    sizes = [search.batch_sizes.index(call.config["batch_size"]) for call in calls]
    kinds = len(search.batch_sizes)
    counts = [sizes.count(index) for index in range(kinds)]
    lacking = 0 in counts and kinds * (1 - 1 / kinds) ** number < RARE
    refuse(too_uneven(counts) or lacking, UNEQUAL_SIZES, measured=dict(zip(search.batch_sizes, counts, strict=True)))
    if number >= MANY:
        refuse(uneven < LEAST_UNEVEN, GRID)
        both = Counter((int(min(value, 0.999) * 5), size) for value, size in zip(places, sizes, strict=True))
        refuse(too_uneven([both[part, size] for part in range(5) for size in range(kinds)]), DEPENDENT)
        following = Counter(pairwise(sizes))
        refuse(too_uneven([following[one, other] for one in range(kinds) for other in range(kinds)]), DEALT)


def unevenness(values: Sequence[float]) -> float:
    """Kolmogorov and Smirnov's distance of values from a uniform distribution on 0 to 1, times √n."""
    number, steps = len(values), enumerate(sorted(values))
    return math.sqrt(number) * max(max((i + 1) / number - value, value - i / number) for i, value in steps)


def too_uneven(counts: Sequence[int]) -> bool:
    """Chi-square of equally likely cells, by Wilson and Hilferty's approximation: beyond five deviates."""
    free, share = max(len(counts) - 1, 1), sum(counts) / len(counts)
    chi = sum((count - share) ** 2 for count in counts) / share
    return ((chi / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free)) > DEVIATES


def judge_best(calls: Sequence[Call], result: Any) -> None:
    """The returned configuration is the best of those tried, with its loss."""
    config, loss = pair(result)
    good = [call for call in calls if call.loss == call.loss]
    best = min(good, key=lambda call: call.loss)
    words = "the returned configuration is not the best that was tried"
    if config == best.config:
        words = "the loss does not belong to the returned configuration"
    elif loss != loss or any(call.loss != call.loss for call in calls if call.config == config):
        words = DIVERGED
    elif config == calls[-1].config:
        words = LAST
    elif config == max(good, key=lambda call: call.loss).config:
        words = HIGHEST
    figures = {"measured": f"{config}, {loss:.8g}", "expected": f"{best.config}, {best.loss:.8g}"}
    refuse(config != best.config or loss != best.loss, words, **figures)


def pair(result: Any) -> tuple[Config, float]:
    """A configuration and its loss; refused if the result is none."""
    fine = isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[0], dict)
    fine = fine and isinstance(result[1], int | float) and set(result[0]) == {"lr", "batch_size"}
    words = "return two things: the best configuration (a dict with lr and batch_size), and its loss"
    refuse(not fine, words, measured=str(result)[:100])
    return result[0], float(result[1])
