"""Check of ``run``: the next unit's all-gather is on its way while this one computes.

The units write down what is done with them. A small simulation puts that on a timeline, by the rules of streams: an
all-gather begins when the network is free and when what was launched before it has ended; ``wait()`` makes what is
launched afterwards wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from checks.engine import Reference, exercise, leaves, refuse

NEXT = "        if number + 1 < len(units):\n            work = units[number + 1].gather()\n"
BEGIN, WAIT, COMPUTE = "    work = units[0].gather()\n", "work.wait()\n", "x = unit(x)\n"
OFFICIAL = Reference("sharded_data_parallel", "run", {
    "nothing overlaps: begin the next all-gather before you compute":
        {NEXT: "", WAIT: "unit.gather().wait()\n", BEGIN: ""},
    "all units are gathered at once: only the one that computes, and the next":
        {BEGIN: "    works = [unit.gather() for unit in units]\n", NEXT: "", WAIT: "works[number].wait()\n"},
    "two units are gathered ahead: only the next one":
        {BEGIN: "    works = [unit.gather() for unit in units[:2]]\n", WAIT: "works[number].wait()\n",
         NEXT: "        if number + 2 < len(units):\n            works.append(units[number + 2].gather())\n"},
    "the output is not that of all units, one after the other: hand on what a unit returns": {COMPUTE: "unit(x)\n"},
})  # fmt: skip
CASES = [
    {"units": 6, "gather_ms": 1.0, "compute_ms": 2.0, "seed": 1},
    {"units": 1, "gather_ms": 1.0, "compute_ms": 1.0, "seed": 2},
    {"units": 2, "gather_ms": 1.0, "compute_ms": 3.0, "seed": 3},
    {"units": 17, "gather_ms": 3.0, "compute_ms": 1.0, "seed": 4},
]


class Work:
    """An all-gather that is on its way."""

    def __init__(self, unit: Unit) -> None:
        self.wait = unit.wait


class Unit:
    """A layer whose parameters are gathered, used and freed."""

    def __init__(self, number: int, log: list[tuple[str, int]]) -> None:
        self.number, self.log, self.state = number, log, "away"
        self.used = False

    def gather(self) -> Work:
        """Begin to gather the parameters."""
        refuse(self.state != "away" or self.used, f"unit {self.number} is gathered twice: once is enough")
        self.state = "on its way"
        self.log.append(("gather", self.number))
        return Work(self)

    def wait(self) -> None:
        self.log.append(("wait", self.number))
        self.state = "there" if self.state == "on its way" else self.state

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute with the parameters."""
        refuse(self.used, f"unit {self.number} computes more than once: once is enough")
        refuse(self.state == "away", f"unit {self.number} computes, and its parameters are not gathered")
        words = f"unit {self.number} computes before anybody has waited for its all-gather: it may read anything"
        refuse(self.state == "on its way", words)
        self.used = True
        self.log.append(("compute", self.number))
        return x * (0.5 + self.number % 7) + 1

    def free(self) -> None:
        """Give the parameters' memory back."""
        refuse(not self.used, f"unit {self.number} is freed before it has computed")
        refuse(self.state == "away", f"unit {self.number} is freed, and it is not there: it was freed before")
        self.state = "away"
        self.log.append(("free", self.number))


@exercise(OFFICIAL, CASES, title="Prefetch", difficulty=2, minutes=20)
def prefetch(case: dict[str, Any], run: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``run(units, x)``: in time of a simulated GPU, and in units that are gathered at once."""
    log: list[tuple[str, int]] = []
    units = [Unit(number, log) for number in range(case["units"])]
    x = torch.randn(3, generator=torch.Generator().manual_seed(case["seed"]))
    with leaves(x=x):
        y = run(units, x)
    used = sum(unit.used for unit in units)
    refuse(used < len(units), "not every unit has computed", measured=used, expected=len(units))
    left = [unit.number for unit in units if unit.state != "away"]
    refuse(left, "units are gathered and not freed after their use", measured=f"units {left}")
    there, most = 0, 0
    for what, _ in log:
        there += (what == "gather") - (what == "free")
        most = max(most, there)
    return {
        "the output": y,
        "units that are gathered at the same time": max(most, 2),
        "simulated": f"{timeline(log, case['gather_ms'], case['compute_ms']):g} ms",
    }


def timeline(log: Sequence[tuple[str, int]], gather: float, compute: float) -> float:
    """Milliseconds until all is done."""
    gpu = network = 0.0
    over: dict[int, float] = {}
    for what, number in log:
        if what == "gather":
            network = max(network, gpu) + gather
            over[number] = network
        elif what == "wait":
            gpu = max(gpu, over.get(number, 0.0))
        elif what == "compute":
            gpu += compute
    return max(gpu, network)
