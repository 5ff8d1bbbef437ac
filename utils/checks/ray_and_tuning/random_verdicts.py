"""Random search by hand: the situations, what a rank does in them, and what the check says."""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from utils.checks.ray_and_tuning.bookkeeping import Books, Call, Config, Objective
from utils.checks.ray_and_tuning.curves import Landscape
from utils.checks.verdicts import Wrong

EPOCHS = 30  # of a whole training
CLOSE = 0.02  # to the lowest loss, in the search with many trials
LANDSCAPE = Landscape(diverges_at=0.5)


@dataclass(frozen=True)
class Search:
    """One call of the learner's function."""

    low: float
    high: float
    batch_sizes: tuple[int, ...]
    trials: int
    seed: int
    fails_first: bool = False

    def __str__(self) -> str:
        return f"{self.trials} trials from {self.low:g} to {self.high:g}"


MANY = Search(1e-5, 1.0, (16, 32, 64, 128), 400, seed=1)
FEW = Search(1e-3, 0.1, (32, 256), 12, seed=2, fails_first=True)
OTHER_SEED = Search(1e-3, 0.1, (32, 256), 12, seed=3)
SEARCHES = (MANY, FEW, FEW, OTHER_SEED, Search(0.01, 0.02, (8,), 1, seed=4))


def whole_training(config: Config, _: int) -> float:
    """The loss at the end."""
    return LANDSCAPE(config, EPOCHS)


def open_books(stack: contextlib.ExitStack, searches: Sequence[Search]) -> list[Books]:
    """Books for each search, closed with the stack."""
    return [stack.enter_context(Books(whole_training, search.fails_first)) for search in searches]


def run_searches(random_search: Any, searches: Sequence[Search], paths: Sequence[str]) -> list[Any]:
    """In a rank: what the learner's function returns for each search."""
    return [
        random_search(
            Objective(path),
            search.low,
            search.high,
            list(search.batch_sizes),
            search.trials,
            random.Random(search.seed),
        )
        for search, path in zip(searches, paths, strict=True)
    ]


def judge(searches: Sequence[Search], books: Sequence[Books], results: Sequence[Any]) -> None:
    """All searches: the budget, the samples, the best; then what their seeds make of them."""
    for search, book, result in zip(searches, books, results, strict=True):
        judge_budget(search, book)
        judge_range(search, book.calls)
        if search is MANY:
            judge_samples(search, book.calls)
        judge_best(search, book.calls, result)
    first, again, other = (
        [call.config for call in books[place].calls]
        for place in (searches.index(FEW), searches.index(FEW) + 1, searches.index(OTHER_SEED))
    )
    if first != again:
        raise Wrong(
            "Two searches whose generators have the same seed try different configurations: draw with rng, and with no "
            "other generator"
        )
    if first == other:
        raise Wrong("Another seed gives the same configurations: draw with the rng that is given, make none yourself")


def judge_budget(search: Search, book: Books) -> None:
    """One training for each trial."""
    if book.refused:
        raise Wrong(f"{book.refused[0]} ({search})")
    calls = len(book.calls)
    if calls == search.trials:
        return
    figures = {"measured": f"{calls:,} trainings", "expected": f"{search.trials:,}"}
    if not calls:
        raise Wrong(f"objective was never called ({search})", **figures)
    configs = Counter(tuple(sorted(call.config.items())) for call in book.calls)
    if calls > search.trials and len(configs) == search.trials:
        raise Wrong(
            f"Configurations are trained a second time: keep the loss that objective has returned ({search})", **figures
        )
    if calls == search.trials * len(search.batch_sizes):
        raise Wrong(f"Every batch size is tried for each of the trials: that is a grid ({search})", **figures)
    raise Wrong(f"The budget is one training for each trial ({search})", **figures)


def judge_range(search: Search, calls: Sequence[Call]) -> None:
    """Learning rates between low and high, batch sizes of the list."""
    for call in calls:
        lr, batch_size = call.config["lr"], call.config["batch_size"]
        if not search.low <= lr <= search.high:
            why = "a learning rate is outside the range"
            if search.low <= 10**lr <= search.high or search.low <= math.exp(lr) <= search.high:
                why = "a learning rate is a logarithm: draw the exponent, then raise to its power"
            elif lr > 0 and abs(math.log(lr)) > 1.5 * abs(math.log(search.low)):
                why += ": are natural logarithms and powers of ten mixed?"
            raise Wrong(f"{why[0].upper()}{why[1:]} ({search})", measured=lr)
        if batch_size not in search.batch_sizes:
            raise Wrong(f"A batch size is not in the list ({search})", measured=batch_size)


def place(search: Search, lr: float) -> float:
    """Where a learning rate lies on the logarithmic axis: 0 at low, 1 at high."""
    return math.log(lr / search.low) / math.log(search.high / search.low)


def unevenness(values: Sequence[float]) -> float:
    """Kolmogorov and Smirnov's distance of values from a uniform distribution on 0 to 1, times √n.

    For n independent uniform values it is above 2.5, or below 0.3, once in 100,000.
    """
    number = len(values)
    steps = enumerate(sorted(values))
    return math.sqrt(number) * max(max((i + 1) / number - value, value - i / number) for i, value in steps)


def correlation(ones: Sequence[float], others: Sequence[float]) -> float:
    """The correlation times √n: of independent values it is beyond ±4.5 once in 100,000."""
    number = len(ones)
    mean, other_mean = sum(ones) / number, sum(others) / number
    ones, others = [one - mean for one in ones], [other - other_mean for other in others]
    size = math.sqrt(sum(one * one for one in ones) * sum(other * other for other in others))
    return math.sqrt(number) * sum(a * b for a, b in zip(ones, others, strict=True)) / size if size else 0.0


MOST_UNEVEN, LEAST_UNEVEN, MOST_CORRELATED = 2.5, 0.3, 4.5


def judge_samples(search: Search, calls: Sequence[Call]) -> None:
    """Many samples: log-uniform, each batch size equally often, each draw independent of all others."""
    places = [place(search, call.config["lr"]) for call in calls]
    indices = [search.batch_sizes.index(call.config["batch_size"]) for call in calls]
    distinct = len({round(value, 12) for value in places})
    if distinct == 1:
        raise Wrong(
            f"All {len(calls)} learning rates are the same: is the generator made anew, or its seed set, in the loop?"
        )
    if distinct < 0.9 * len(calls):
        raise Wrong(
            "Learning rates come again: draw each anew, from the whole range",
            measured=f"{distinct} different learning rates",
            expected=f"{len(calls)}",
        )
    uniform = [(call.config["lr"] - search.low) / (search.high - search.low) for call in calls]
    if unevenness(places) > MOST_UNEVEN:
        above = sum(value > 0.8 for value in places) / len(places)
        if unevenness(uniform) < MOST_UNEVEN:
            raise Wrong(
                "The learning rates are uniform, not log-uniform: each power of ten should get its equal share",
                measured=f"{above:.0%} above {search.high / 10:g}",
                expected="20%",
            )
        halves = [unevenness(places[: len(places) // 2]), unevenness(places[len(places) // 2 :])]
        if halves[1] > 1.5 * halves[0]:
            raise Wrong(
                "Later samples crowd in one place: in random search no sample depends on the losses of earlier ones"
            )
        raise Wrong(
            "The learning rates are not log-uniform: each power of ten should get its equal share",
            measured=f"{above:.0%} above {search.high / 10:g}",
            expected="20%",
        )
    if unevenness(places) < LEAST_UNEVEN:
        raise Wrong(
            "The learning rates have equal distances: that is a grid (or one sample in each of its parts), "
            "not independent samples"
        )
    _judge_independence(search, places, indices)


def _judge_independence(search: Search, places: list[float], indices: list[int]) -> None:
    sizes, number = len(search.batch_sizes), len(places)
    share = number / sizes
    for index, size in enumerate(search.batch_sizes):
        if abs(indices.count(index) - share) > MOST_CORRELATED * math.sqrt(share):
            raise Wrong(
                "The batch sizes are not equally likely",
                measured=f"batch size {size}: {indices.count(index)} times",
                expected=f"about {share:.0f}",
            )
    if abs(correlation(places, indices)) > MOST_CORRELATED:
        raise Wrong("Learning rate and batch size depend on each other: draw a new number for each of them")
    repeats = sum(one == other for one, other in pairwise(indices))
    if abs(repeats - share) > MOST_CORRELATED * math.sqrt(share):
        raise Wrong(
            "The batch sizes are dealt out in turn, not drawn: each sample should be independent of the one before",
            measured=f"{repeats} times the same as before",
            expected=f"about {share:.0f} times",
        )
    if abs(correlation(places[:-1], places[1:])) > MOST_CORRELATED:
        raise Wrong("A learning rate depends on the one before it: draw each from the whole range")


def judge_best(search: Search, calls: Sequence[Call], result: Any) -> None:
    """The returned configuration is the best of those tried, with its loss."""
    config, loss = pair_of(result)
    good = [call for call in calls if not _failed(call)]
    best = min(good, key=lambda call: call.loss)
    if config == best.config and loss == best.loss:
        return
    if loss != loss or any(_failed(call) and call.config == config for call in calls):
        raise Wrong(
            "A training that has diverged wins: nan is neither less nor greater than a number, so leave it out "
            f"({search})",
            measured=loss,
            expected=best.loss,
        )
    if config == max(good, key=lambda call: call.loss).config:
        raise Wrong(f"The highest loss wins ({search})", measured=loss, expected=best.loss)
    if config == calls[-1].config:
        raise Wrong(f"The last configuration is returned, not the best ({search})", measured=loss, expected=best.loss)
    if config not in [call.config for call in calls]:
        raise Wrong(f"The returned configuration was never trained ({search})", measured=config, expected=best.config)
    if config == best.config:
        raise Wrong(f"The loss does not belong to the returned configuration ({search})", measured=loss,
                    expected=best.loss)  # fmt: skip
    raise Wrong(f"The returned configuration is not the best that was tried ({search})", measured=loss,
                expected=best.loss)  # fmt: skip


def pair_of(result: Any) -> tuple[Config, float]:
    """A result as configuration and loss."""
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[0], dict):
        raise Wrong("Return two things: the best configuration (a dict), and its loss", measured=result)
    config, loss = result
    if isinstance(loss, bool) or not isinstance(loss, int | float):
        raise Wrong("The second thing to return is a loss, a number", measured=loss)
    if set(config) != {"lr", "batch_size"}:
        raise Wrong("The configuration that is returned has lr and batch_size, nothing else", measured=config)
    return config, loss


def _failed(call: Call) -> bool:
    return call.loss is None or call.loss != call.loss
