"""Check of ``random_search``: one training for each trial, samples that are log-uniform, the best of all comes back."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, leaves, refuse
from checks.labs.ray_and_tuning import searches
from checks.labs.ray_and_tuning.notes import is_config
from checks.labs.ray_and_tuning.searches import Call, Search

LR = "lr = min(max(10**exponent, low), high)"
EXPONENT, DRAW, LESS = "rng.uniform(math.log10(low), math.log10(high))", "rng.choice(batch_sizes)", "if loss < lowest"
START, EACH, NUMBERED = "    best, lowest = None", "for _ in range(trials)", "for number in range(trials)"
OFFICIAL = Reference("ray_and_tuning", "random_search", {
    searches.UNIFORM: {LR: "lr = rng.uniform(low, high)"},
    searches.LOGARITHM: {LR: "lr = exponent"},
    searches.ALL_THE_SAME: {"        exponent =": "        rng = random.Random(0)\n        exponent ="},
    searches.GRID:
        {EACH: NUMBERED, EXPONENT: "math.log10(low) + number / max(1, trials - 1) * math.log10(high / low)"},
    searches.UNEQUAL_SIZES: {DRAW: "batch_sizes[round(rng.uniform(0, len(batch_sizes) - 1))]"},
    searches.DEALT: {EACH: NUMBERED, DRAW: "batch_sizes[number % len(batch_sizes)]"},
    searches.DEPENDENT:
        {DRAW: "batch_sizes[int(abs(math.log(lr / low) / math.log(high / low)) * 0.9999 * len(batch_sizes))]"},
    searches.SIZES_GRID: {EACH: "for batch_size in trials * batch_sizes", DRAW: "batch_size"},
    "the budget is one training for each trial": {EACH: "for _ in range(trials + 1)"},
    searches.AGAIN: {"return best, lowest": "return best, objective(best)"},
    searches.HIGHEST: {LESS: "if best is None or loss > lowest"},
    searches.LAST: {LESS: "if math.isfinite(loss)"},
    searches.DIVERGED: {LESS: "if not loss >= lowest"},
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


def play(case: dict[str, Any], random_search: Callable[..., Any]) -> dict[str, Any]:
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
    calls: list[Call] = []

    def objective(config: Any) -> float:
        fine = is_config(config)
        refuse(not fine, "objective takes a dict with lr and batch_size, two numbers", measured=str(config)[:100])
        loss = abs(searches.place(search, max(config["lr"], 1e-300)) - 0.6) + config["batch_size"] / 1000
        if "zero" in losses:
            loss = math.nan if len(calls) % 4 == 1 else loss - 3
        elif "large" in losses:
            loss = math.nan if not calls else 1e12 * (1 + loss)
        calls.append(Call(len(calls), dict(config), 1, 1, loss, 0))
        return loss

    sizes = list(search.batch_sizes)
    with leaves(batch_sizes=sizes):
        result = random_search(objective, search.low, search.high, sizes, search.trials, random.Random(seed))
    refuse(len(calls) > 2 and len({call.config["lr"] for call in calls}) == 1, searches.ALL_THE_SAME)
    searches.judge_budget(search, calls)
    searches.judge_range(search, calls)
    if search.trials >= searches.MANY:
        searches.judge_samples(search, calls)
    searches.judge_best(calls, result)
    return [call.config for call in calls]
