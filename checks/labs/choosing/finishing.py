"""Check of ``long_run``: saves and failures of a run of weeks (Young, 1974), and its price."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise
from checks.engine.refusing import named

OFFICIAL = Reference("choosing", "long_run", {
    "the last step is a whole one: round the number of steps up": {"math.ceil(tokens / step_tokens)":
                                                                   "(tokens / step_tokens)"},
    "one GPU's time between failures is taken for the cluster's: divide by the GPUs":
        {"failure_hours * 3600 / gpus": "failure_hours * 3600"},
    "the hours between failures are taken for seconds": {"failure_hours * 3600 / gpus": "failure_hours / gpus"},
    "the interval misses Young's factor: it is √(2 · save · time between failures)":
        {"math.sqrt(2 * save": "math.sqrt(save"},
    "the interval is not the square root": {"math.sqrt(2 * save * between)": "2 * save * between"},
    "the interval is wanted in minutes": {"every / 60,": "every,"},
    "the days are those without failures: saves, lost work and restarts come on top": {"pure * (1 + lost)": "pure"},
    "saves take time, and half an interval's work is lost with each failure: one of the two is left out (at Young's "
    "interval they are equal)": {" + every / 2 / between": ""},
    "a failure loses half an interval on average, not a whole one": {"every / 2 / between": "every / between"},
    "a failure also costs a restart": {" + restart / between": ""},
    "the price is for one GPU and hour: multiply by the GPUs": {"whole / 3600 * gpus": "whole / 3600"},
    "GPUs cost money while they save and restart, too": {"whole / 3600 * gpus": "pure / 3600 * gpus"},
    "the price is for an hour": {"whole / 3600 * gpus": "whole / 86400 * gpus"},
})  # fmt: skip
LABELS = ("days", "minutes between saves", "euros")


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """The lab's run first."""
    if number == 0:
        return {"tokens": 15e12, "step_tokens": 2**24, "seconds": 5.0, "gpus": 16_384, "failure_hours": 50_000,
                "save": 10, "restart": 300, "price": 2}  # fmt: skip
    return {
        "tokens": rng.randint(10, 200) * 10 ** rng.randint(8, 11),
        "step_tokens": 2 ** rng.randint(19, 25),
        "seconds": round(rng.uniform(1, 20), 1),
        "gpus": 2 ** rng.randint(6, 14),
        "failure_hours": rng.randint(10, 100) * 1000,
        "save": rng.randint(2, 120),
        "restart": rng.randint(60, 1200),
        "price": rng.randint(1, 9),
    }


@exercise(OFFICIAL, draw, title="Fifteen trillion tokens", difficulty=2, minutes=20, timeout=30)
def long_run(case: dict[str, Any], long_run: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``long_run(tokens, step_tokens, seconds, gpus, failure_hours, save, restart, price)``."""
    return named(long_run(**case), "three", LABELS)
