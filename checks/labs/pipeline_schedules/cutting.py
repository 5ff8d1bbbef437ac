"""Check of ``cut``: within memory, and the slowest stage within 5 % of the best."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, leaves, refuse
from checks.engine.plain import from_array, number, shorten

OFFICIAL = Reference("pipeline_schedules", "cut", {
    "layers are dealt by their number, not by their time":
        {"    n = len(times)": "    n = len(times)\n    return [n // p + (s < n % p) for s in range(p)]"},
    "stages are filled up one after the other to the average: what is left over falls to the last one":
        {"    n = len(times)": "    sizes, t = [1], times[0]\n"
         "    for left, one in enumerate(times[1:], 1):\n"
         "        full = t + one > sum(times) / p and len(sizes) < p\n"
         "        if full or len(times) - left <= p - len(sizes):\n            sizes, t = [*sizes, 0], 0\n"
         "        sizes[-1], t = sizes[-1] + 1, t + one\n    return sizes\n    n = len(times)"},
})  # fmt: skip
NEAR = 1.05


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """A transformer with plenty of memory; then other times, and memory that just suffices for some cut."""
    p = 4 if number == 0 else rng.randint(1, 6)
    count = 32 if number == 0 else p + rng.randint(0, 30)
    times = [10] * count if number == 0 else [rng.choice((10, 10, rng.randint(1, 60))) for _ in range(count)]
    times[0], times[-1] = 1, 26 if number == 0 else rng.randint(1, 80)
    if number == 5:
        p, times = 16, [rng.randint(5, 20) for _ in range(130)]
    weights = [rng.randint(1, 30) for _ in times]
    activations = [rng.randint(1, 10) for _ in times]
    case = {"p": p, "times": times, "weights": weights, "activations": activations, "memory": 10**9}
    if number > 1:
        sizes = _some_cut(len(times), p, rng)
        case["memory"] = max(held for _, held in _stages(case, sizes)) + rng.choice((0, 0, 1, 20))
    case["best"] = max(
        time for time, _ in _stages(case, OFFICIAL.functions()[0](times, weights, activations, p, case["memory"]))
    )
    return case


@exercise(OFFICIAL, draw, title="Where to cut", difficulty=2, minutes=15, timeout=30)
def cut(case: dict[str, Any], cut: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``cut(times, weights, activations, p, memory)``."""
    times, weights, activations, p = (case[name] for name in ("times", "weights", "activations", "p"))
    with leaves(times=times, weights=weights, activations=activations):
        result = from_array(cut(times, weights, activations, p, case["memory"]))
    sizes = [number(from_array(one), whole=True) for one in result] if isinstance(result, list | tuple) else [None]
    refuse(None in sizes, "the result is not a list of whole numbers", measured=shorten(result))
    refuse(len(sizes) != p, "the result has not one number for each stage", measured=len(sizes), expected=p)
    refuse(
        sum(sizes) != len(times), "the stages together have not all layers", measured=sum(sizes), expected=len(times)
    )
    refuse(min(sizes) < 1, "a stage has no layer", measured=shorten(sizes))
    stages = _stages(case, sizes)
    slowest, (held, fullest) = max(time for time, _ in stages), max((held, s) for s, (_, held) in enumerate(stages))
    if slowest > NEAR * case["best"]:
        return {"the slowest stage's time": slowest}
    fault = (
        f"stage {fullest} needs more than the memory that there is (with activations of {p - fullest} micro-batches)"
    )
    refuse(held > case["memory"], fault, measured=held, expected=f"at most {case['memory']}")
    return {"the slowest stage's time": case["best"]}


def _stages(case: dict[str, Any], sizes: list[int]) -> list[tuple[int, int]]:
    """Time and memory of each stage."""
    found, start = [], 0
    for stage, size in enumerate(sizes):
        mine = slice(start, start + size)
        waiting = case["p"] - stage
        held = sum(case["weights"][mine]) + waiting * sum(case["activations"][mine])
        found.append((sum(case["times"][mine]), held))
        start += size
    return found


def _some_cut(layers: int, p: int, rng: random.Random) -> list[int]:
    edges = [0, *sorted(rng.sample(range(1, layers), p - 1)), layers]
    return [after - before for before, after in itertools.pairwise(edges)]
