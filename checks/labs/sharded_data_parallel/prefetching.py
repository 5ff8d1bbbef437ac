"""Check of ``run``: the next unit's all-gather is on its way while this one computes, on a simulated timeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
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
_MS = [(6, 1.0, 2.0), (1, 1.0, 1.0), (2, 1.0, 3.0), (17, 3.0, 1.0)]
CASES = [{"units": count, "gather_ms": gather, "compute_ms": compute} for count, gather, compute in _MS]


@dataclass
class Timeline:
    """By the rules of streams: an all-gather begins when the network is free and when what was launched before it has
    ended; ``wait()`` makes what is launched afterwards wait. In milliseconds; ``most`` units were there at once."""

    gather_ms: float
    compute_ms: float
    gpu: float = 0.0
    network: float = 0.0
    there: int = 0
    most: int = 2


class Unit:
    """A layer whose parameters are gathered, used and freed."""

    def __init__(self, number: int, line: Timeline) -> None:
        self.number, self.line, self.state, self.used, self.over = number, line, "away", False, 0.0

    def gather(self) -> Any:
        """Begin to gather the parameters."""
        refuse(self.state != "away" or self.used, f"unit {self.number} is gathered twice: once is enough")
        self.state, line = "on its way", self.line
        line.there += 1
        line.most = max(line.most, line.there)
        line.network = self.over = max(line.network, line.gpu) + line.gather_ms
        return SimpleNamespace(wait=self._wait)

    def _wait(self) -> None:
        self.line.gpu = max(self.line.gpu, self.over)
        self.state = "there" if self.state == "on its way" else self.state

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute with the parameters."""
        refuse(self.used, f"unit {self.number} computes more than once: once is enough")
        refuse(self.state == "away", f"unit {self.number} computes, and its parameters are not gathered")
        fault = f"unit {self.number} computes before anybody has waited for its all-gather: it may read anything"
        refuse(self.state == "on its way", fault)
        self.used = True
        self.line.gpu += self.line.compute_ms
        return x * (0.5 + self.number % 7) + 1

    def free(self) -> None:
        """Give the parameters' memory back."""
        refuse(not self.used, f"unit {self.number} is freed before it has computed")
        refuse(self.state == "away", f"unit {self.number} is freed, and it is not there: it was freed before")
        self.state = "away"
        self.line.there -= 1


@exercise(OFFICIAL, CASES, title="Prefetch", difficulty=2, minutes=20)
def prefetch(case: dict[str, Any], run: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``run(units, x)``: in time of a simulated GPU, and in units that are gathered at once."""
    line = Timeline(case["gather_ms"], case["compute_ms"])
    units = [Unit(number, line) for number in range(case["units"])]
    x = torch.arange(3.0)
    with leaves(x=x):
        y = run(units, x)
    used = sum(unit.used for unit in units)
    refuse(used < len(units), "not every unit has computed", measured=used, expected=len(units))
    left = [unit.number for unit in units if unit.state != "away"]
    refuse(left, "units are gathered and not freed after their use", measured=f"units {left}")
    took = f"{max(line.gpu, line.network):g} ms"
    return {"the output": y, "units that are gathered at the same time": line.most, "simulated": took}
