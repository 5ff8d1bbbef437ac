"""Check of ``random_search``, and what every search of this lab is judged by: budget, samples, and the best."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

from checks.engine import Reference, exercise, leaves, refuse
from checks.labs.ray_and_tuning.notes import is_config

MANY = 200  # in fewer samples, everything may happen that looks like a grid or a pattern
DEVIATES = 5.0  # right samples pass but once in a million times or so
ROUNDING = 1e-9  # so much a learning rate may be outside the range, as a part of it
BUDGET = "the budget is one training for each trial (and if every batch size is tried for each, that is a grid)"
OUTSIDE = "a learning rate is outside the range: is it still a logarithm, or a power of another base?"
ALL_THE_SAME = "the learning rates are all the same: is the generator made anew, or its seed set, in the loop?"
UNIFORM = "learning rates are not log-uniform: draw the exponent, so that each power of ten gets its equal share"
GRID = "learning rates have equal distances: that is a grid, not independent samples"
UNEQUAL_SIZES = "batch sizes are not equally likely"
DEPENDENT = "learning rate and batch size depend on each other: draw a new number for each of them"
DEALT = "batch sizes are dealt out in turn, not drawn: no sample depends on the one before"
NOT_THE_BEST = "{} is returned, not the best that was tried"
LAST, HIGHEST, DIVERGED = "the last configuration", "the configuration with the highest loss", "one that has diverged"

LR = "lr = min(max(10**exponent, low), high)"
EXPONENT, DRAW, LESS = "rng.uniform(math.log10(low), math.log10(high))", "rng.choice(batch_sizes)", "if loss < lowest"
START, EACH, NUMBERED = "    best, lowest = None", "for _ in range(trials)", "for number in range(trials)"
OFFICIAL = Reference("ray_and_tuning", "random_search", {
    UNIFORM: {LR: "lr = rng.uniform(low, high)"},
    OUTSIDE: {LR: "lr = exponent"},
    ALL_THE_SAME: {"        exponent =": "        rng = random.Random(0)\n        exponent ="},
    GRID:
        {EACH: NUMBERED, EXPONENT: "math.log10(low) + number / max(1, trials - 1) * math.log10(high / low)"},
    UNEQUAL_SIZES: {DRAW: "batch_sizes[round(rng.uniform(0, len(batch_sizes) - 1))]"},
    DEALT: {EACH: NUMBERED, DRAW: "batch_sizes[number % len(batch_sizes)]"},
    DEPENDENT:
        {DRAW: "batch_sizes[int(abs(math.log(lr / low) / math.log(high / low)) * 0.9999 * len(batch_sizes))]"},
    BUDGET: {EACH: "for batch_size in trials * batch_sizes", DRAW: "batch_size"},
    NOT_THE_BEST.format(HIGHEST): {LESS: "if best is None or loss > lowest"},
    NOT_THE_BEST.format(LAST): {LESS: "if math.isfinite(loss)"},
    NOT_THE_BEST.format(DIVERGED): {LESS: "if not loss >= lowest"},
    "another seed makes the same search: draw with the `rng` that is given":
        {START: "    rng = random.Random(0)\n" + START},
    "the same seed makes another search: draw with `rng`, and with nothing else":
        {"rng.uniform": "random.SystemRandom().uniform"},
})  # fmt: skip
CASES = [
    {"trials": 12, "losses": "falling", "seed": 6},
    {"trials": 1, "losses": "falling", "seed": 2},
    {"trials": 30, "losses": "below zero, and some nan", "seed": 3},
    {"trials": 20, "losses": "very large, and the first nan", "seed": 4},
    {"trials": 1000, "losses": "falling", "seed": 5},
]  # (the one of many trials tells how samples are drawn)


@dataclass(frozen=True)
class Search:
    """One call of the learner's function."""

    low: float
    high: float
    batch_sizes: tuple[int, ...]
    trials: int
    seed: int
    most_epochs: int = 0  # of a trial, where a scheduler stops it


def place(search: Search, lr: float) -> float:
    """Where a learning rate lies on the logarithmic axis: 0 at low, 1 at high."""
    return math.log(lr / search.low) / math.log(search.high / search.low)


def judge_draws(search: Search, configs: Sequence[dict[str, Any]]) -> None:
    """One for each trial: log-uniform learning rates, each batch size equally often; many are independent."""
    low, high, number = search.low, search.high, len(configs)
    rates, sizes = ([config[name] for config in configs] for name in ("lr", "batch_size"))
    outside = [lr for lr in rates if not low * (1 - ROUNDING) <= lr <= high * (1 + ROUNDING)]
    refuse(outside, OUTSIDE, measured=outside[:1], expected=f"{low:g} to {high:g}")
    strange = {*sizes} - {*search.batch_sizes}
    refuse(strange, "a batch size is not in the list", measured=strange, expected=search.batch_sizes)
    refuse(number != search.trials, BUDGET, measured=f"{number:,} trainings", expected=f"{search.trials:,}")
    refuse(len({*rates}) == 1 < number, ALL_THE_SAME)
    fault = "learning rates come again: draw each from the whole range"
    refuse(len({*rates}) < 0.9 * number, fault, measured=f"{len({*rates})} different ones", expected=number)
    places = [min(max(place(search, lr), 0), 0.999) for lr in rates]
    fifths = [int(5 * value) for value in places]
    highest = f"{fifths.count(4) / number:.0%} in the highest fifth of the exponents"
    refuse(uneven(fifths, range(5)), UNIFORM, measured=highest, expected="20%")
    refuse(uneven(sizes, search.batch_sizes), UNEQUAL_SIZES, measured=dict(Counter(sizes)))
    if number >= MANY:
        distances = sorted(second - first for first, second in pairwise(sorted(places)))
        refuse(distances[-1] < 2 * distances[number // 2], GRID)
        refuse(uneven(zip(fifths, sizes, strict=True), product(range(5), search.batch_sizes)), DEPENDENT)
        refuse(uneven(pairwise(sizes), product(search.batch_sizes, repeat=2)), DEALT)


def uneven(samples: Iterable[Hashable], kinds: Iterable[Hashable]) -> bool:
    """Whether kinds are not equally likely: chi-square, by Wilson and Hilferty's approximation."""
    counts, all_kinds = Counter(samples), [*kinds]
    free, share = max(len(all_kinds) - 1, 1), counts.total() / len(all_kinds)
    chi = sum((counts[kind] - share) ** 2 for kind in all_kinds) / share
    return ((chi / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free)) > DEVIATES


def judge_best(calls: Sequence[Any], result: Any) -> None:
    """What is returned is the best configuration of those tried, with its loss."""
    config, loss = pair(result)
    good = sorted((call for call in calls if call.loss == call.loss), key=lambda call: call.loss)
    kinds = {DIVERGED: [call for call in calls if call.loss != call.loss], LAST: calls[-1:], HIGHEST: good[-1:]}
    kind = next((kind for kind, some in kinds.items() if config in [call.config for call in some]), "another one")
    figures = {"measured": f"{config}, {loss:.8g}", "expected": f"{good[0].config}, {good[0].loss:.8g}"}
    refuse(config != good[0].config, NOT_THE_BEST.format(kind), **figures)
    refuse(loss != good[0].loss, "the loss does not belong to the returned configuration", **figures)


def pair(result: Any) -> tuple[dict[str, Any], float]:
    """A configuration and its loss; refused if the result is none."""
    fine = isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[0], dict)
    fine = fine and isinstance(result[1], int | float) and set(result[0]) == {"lr", "batch_size"}
    fault = "return two things: the best configuration (a dict with lr and batch_size), and its loss"
    refuse(not fine, fault, measured=str(result)[:100])
    return result[0], float(result[1])


@exercise(OFFICIAL, CASES, title="Random search", difficulty=1, minutes=20)
def random_by_hand(case: dict[str, Any], random_search: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``random_search(objective, low, high, batch_sizes, trials, rng)``."""
    rng = random.Random(case["seed"])
    low, sizes = 10 ** rng.uniform(-6, -4), tuple(rng.sample((8, 16, 32, 64, 128), 4))
    search = Search(low, low * 10 ** rng.uniform(3, 5), sizes, case["trials"], case["seed"])
    configs = [_searched(random_search, search, case["losses"], seed) for seed in (7, 7, 8)]
    return {
        "a second search with the same seed": "the same one" if configs[0] == configs[1] else "another one",
        "a search with another seed": "the same one" if configs[0] == configs[2] else "another one",
    }


def _searched(random_search: Callable[..., Any], search: Search, losses: str, seed: int) -> list[Any]:
    """The configurations of one search, which is refused if it is none."""
    calls: list[SimpleNamespace] = []

    def objective(config: Any) -> float:
        fine = is_config(config)
        refuse(not fine, "objective takes a dict with lr and batch_size, two numbers", measured=str(config)[:100])
        loss = abs(place(search, max(config["lr"], 1e-300)) - 0.6) + config["batch_size"] / 1000
        if "zero" in losses:
            loss = math.nan if len(calls) % 4 == 1 else loss - 3
        elif "large" in losses:
            loss = math.nan if not calls else 1e12 * (1 + loss)
        calls.append(SimpleNamespace(config=dict(config), loss=loss))
        return loss

    sizes = list(search.batch_sizes)
    with leaves(batch_sizes=sizes):
        result = random_search(objective, search.low, search.high, sizes, search.trials, random.Random(seed))
    judge_draws(search, configs := [call.config for call in calls])
    judge_best(calls, result)
    return configs
