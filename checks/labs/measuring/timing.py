"""Check of ``step_time``, on a clock, a host and a GPU of the check's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import from_array, number, shorten

ROUND = "            step()\n        wait()\n"
WARM = "    for _ in range(5):\n        step()\n    wait()\n"
OFFICIAL = Reference("measuring", "step_time", {
    "the clock is read before the work has run: wait() before it is read the second time":
        {ROUND: "            step()\n"},
    "the first steps, which take longer, are measured with the others": {WARM: "    wait()\n", "range(9)": "range(1)"},
    "the GPU was still busy with something else when the clock was read first, and that is measured too":
        {WARM: "    pass\n", "range(9)": "range(1)"},
    "the host waits behind each step, and then the GPU for the host: several steps between two waits":
        {"range(9)": "range(90)", "range(10)": "range(1)", ") / 10)": "))"},
    "the mean is taken: a disturbed step moves it": {"median(rounds)": "sum(rounds) / 9"},
    "the slowest is taken: that is a disturbed one": {"median(rounds)": "max(rounds)"},
    "it is the time of this rank, not of the slowest": {"max(everyone(median(rounds)))": "median(rounds)"},
    "it is the mean over the ranks, and they wait for the slowest":
        {"max(everyone(median(rounds)))": "sum(everyone(median(rounds))) / len(everyone(1))"},
    "it is the time of several steps, not of one": {") / 10)": "))"},
})  # fmt: skip
NEAR, MOST = 0.03, 100


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    work = 0.1 if number == 0 else rng.uniform(0.02, 2)
    host = work * (0.05 if number == 0 else rng.choice((0.05, 0.1, 0.2, 4)))
    return {"work": work, "host": host, "busy": work * (3 if number == 0 else rng.choice((0, 3, 8))),
            "slower": [1.0, 1.25, 0.9] if number == 0 else _ranks(rng),
            "disturbed": 17 if number == 0 else rng.randint(4, 39)}  # fmt: skip


def _ranks(rng: random.Random) -> list[float]:
    """How much slower than this rank each one is, itself first."""
    return [1.0] + [rng.uniform(0.7, 1.6) for _ in range(rng.randint(0, 5))]


class _Machine:
    """A host that launches, and a GPU that works through its queue."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, self.now, self.free, self.steps = case, 5.0, 5.0 + case["busy"], 0

    def step(self) -> None:
        self.steps += 1
        refuse(self.steps > MOST, f"step is called more than {MOST} times")
        more = 20 if self.steps <= 3 else 6 if self.steps % 40 == self.case["disturbed"] else 1
        self.now += self.case["host"]  # (what is launched can begin at once, and the step ends when all is launched)
        self.free = max(self.free, self.now) + self.case["work"] * more

    def wait(self) -> None:
        self.now = max(self.now, self.free)

    def clock(self) -> float:
        return self.now


@exercise(OFFICIAL, draw, title="A timer that does not deceive", difficulty=2, minutes=20, timeout=30)
def step_time(case: dict[str, Any], step_time: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``step_time(step, wait, clock, everyone)``."""
    machine = _Machine(case)

    def everyone(mine: Any) -> list[Any]:
        return [mine * times for times in case["slower"]]

    found = number(from_array(step_time(machine.step, machine.wait, machine.clock, everyone)))
    refuse(found is None, "the result is not a number", measured=shorten(found))
    true = max(case["work"], case["host"]) * max(case["slower"])
    near = abs(found / true - 1) <= NEAR
    return {"the time of a step": true if near else found}
