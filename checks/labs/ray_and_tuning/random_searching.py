"""Check of ``random_search``: one training for each trial, samples that are log-uniform, the best of all comes back."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, leaves, refuse
from checks.labs.ray_and_tuning import searches
from checks.labs.ray_and_tuning.notes import is_config
from checks.labs.ray_and_tuning.samples import judge_samples
from checks.labs.ray_and_tuning.searches import Call, Search

OFFICIAL = Reference("ray_and_tuning", "random_search", {
    "another seed makes the same search: draw with the `rng` that is given":
        {"    best, lowest = None": "    rng = random.Random(0)\n    best, lowest = None"},
    "the same seed makes another search: draw with `rng`, and with nothing else":
        {"rng.uniform": "random.SystemRandom().uniform"},
    "a generator that was used before makes the same search: its state is put back":
        {"    best, lowest = None": "    state = rng.getstate()\n    best, lowest = None",
         "    return best": "    rng.setstate(state)\n    return best"},
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
    low = 10 ** rng.uniform(-6, -4)
    sizes = rng.sample((8, 16, 32, 64, 128), 4)
    search = Search(low, low * 10 ** rng.uniform(3, 5), tuple(sizes), case["trials"], case["seed"])
    searched = [_searched(random_search, search, case["losses"], seed) for seed in (7, 7, 8)]
    used = random.Random(7)
    again = [_searched(random_search, search, case["losses"], used) for _ in range(2)]
    return {
        "a second search with the same seed": _words(searched[0], searched[1]),
        "a search with another seed": _words(searched[0], searched[2]),
        "a second search with the same generator": _words(*again),
    }


def _words(one: Any, other: Any) -> str:
    return "the same one" if one == other else "another one"


def _searched(random_search: Callable[..., Any], search: Search, losses: str, seed: int | random.Random) -> Any:
    """The configurations of one search, which is refused if it is none."""
    calls: list[Call] = []

    def objective(config: Any) -> float:
        number = len(calls)
        fine = is_config(config)
        refuse(not fine, "objective takes a dict with lr and batch_size, two numbers", measured=str(config)[:100])
        loss = abs(searches.place(search, max(config["lr"], 1e-300)) - 0.6) + config["batch_size"] / 1000
        if "zero" in losses:
            loss = math.nan if number % 4 == 1 else loss - 3
        elif "large" in losses:
            loss = math.nan if number == 0 else 1e12 * (1 + loss)
        calls.append(Call(number, dict(config), 1, 1, loss, 0))
        return loss

    sizes = list(search.batch_sizes)
    generator = seed if isinstance(seed, random.Random) else random.Random(seed)
    with leaves(batch_sizes=sizes):
        result = random_search(objective, search.low, search.high, sizes, search.trials, generator)
    words = "the learning rates are all the same: is the generator made anew, or its seed set, in the loop?"
    refuse(len(calls) > 2 and len({call.config["lr"] for call in calls}) == 1, words)
    searches.judge_budget(search, calls)
    searches.judge_range(search, calls)
    if search.trials > 100:
        judge_samples(search, calls)
    searches.judge_best(calls, result)
    return [call.config for call in calls]
