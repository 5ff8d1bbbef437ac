"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

timing.py      step_time: a clock around work that has not run yet
shares.py      utilization: MFU and HFU
diagnosing.py  diagnose: the rank that all others wait for
hiding.py      exposed: communication while nothing is computed
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.measuring import diagnosing, hiding, shares, timing


@exercise(title="A timer that does not deceive", difficulty=2, minutes=20, official=timing.OFFICIAL)
def step_time(step_time: Any) -> dict[str, Any]:
    """Judge ``step_time(step, wait, clock, everyone)``."""
    return judge(timing.OFFICIAL, timing.play, timing.draw, step_time, timeout=30)


@exercise(title="Utilization, by three conventions", difficulty=1, minutes=15, official=shares.OFFICIAL)
def utilization(utilization: Any) -> dict[str, Any]:
    """Judge ``utilization(parameters, embedding, layers, width, length, tokens, gpus, peak)``."""
    return judge(shares.OFFICIAL, shares.play, shares.draw, utilization, timeout=30)


@exercise(title="Which rank, and why", difficulty=2, minutes=25, official=diagnosing.OFFICIAL)
def diagnose(diagnose: Any) -> dict[str, Any]:
    """Judge ``diagnose(ranks)``."""
    return judge(diagnosing.OFFICIAL, diagnosing.play, diagnosing.draw, diagnose, timeout=30)


@exercise(title="Communication that nobody hides", difficulty=2, minutes=15, official=hiding.OFFICIAL)
def exposed(exposed: Any) -> dict[str, Any]:
    """Judge ``exposed(compute, communication)``."""
    return judge(hiding.OFFICIAL, hiding.play, hiding.draw, exposed, timeout=30)
