"""Check of ``launch_and_held``: from times of several threads, how long a launch is, and how long it holds the GIL."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, leaves, refuse
from checks.engine.plain import from_array, kind_of

HELD, SLOPE = "turn / threads if turn > 1.000001 * launch else None", "(long - short) / (many - few)"
OFFICIAL = Reference("gil_and_refcounting", "launch_and_held", {
    "what starting the threads costs is in it: it goes away in the difference of two runs": {SLOPE: "long / many"},
    "threads · g is what a launch takes when they wait for the GIL: divide by the threads": {HELD: HELD.replace(
        "turn / threads", "turn")},
    "by how much a launch has grown is not g: the law is a maximum, not a sum": {HELD: HELD.replace(
        "turn / threads", "(turn - launch) / threads")},
    "no run shows the GIL: threads · g is at most L, and g may be anything below: None": {HELD: "turn / threads"},
    "that is g = 0, but no run shows the GIL: g may be larger, so None": {HELD: HELD.replace("None", "0.0")},
    "with many threads it takes longer than L: one thread tells it": {"per_launch(1), ": "per_launch(threads), "},
})  # fmt: skip


FIRST = [1, 8], [1, 2], [1, 2, 8]  # numbers of threads: then two do not wait, and two do not wait and eight do


def cases(rng: random.Random, index: int) -> dict[str, Any]:
    """Numbers with which all times are exact."""
    launch, held, start = 10.0, 3.0, 50.0
    if index >= len(FIRST):
        launch, start = rng.randint(8, 40) / 2, float(rng.randint(0, 400))
        held = rng.randint(1, int(4 * launch)) / 4
    crowds = FIRST[index] if index < len(FIRST) else [1, *rng.sample(range(2, 13), rng.randint(1, 3))]
    runs = {
        (threads, launches): start + launches * max(launch, threads * held)
        for threads in crowds
        for launches in rng.sample(range(50, 1000, 50), 2)
    }
    return {"runs": dict(rng.sample(sorted(runs.items()), len(runs)))}


@exercise(OFFICIAL, cases, title="How long does a launch hold the GIL?", difficulty=2, minutes=20)
def held(case: dict[str, Any], launch_and_held: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``launch_and_held(runs)``, which returns microseconds of a launch, and of its part with the GIL."""
    with leaves(runs=case["runs"]):
        found = launch_and_held(case["runs"])
    pair = isinstance(found, tuple | list) and len(found) == 2
    refuse(not pair, "launch_and_held returns a pair: L and g, in microseconds", measured=kind_of(found))
    return {"L, the whole launch": from_array(found[0]), "g, with the GIL": from_array(found[1])}
