"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

order.py    schedule: who does what in which order, for any p, m and v
halves.py   backward_halves: input gradients now, weight gradients later
tied.py     tied_step: one matrix on the first and the last rank
cutting.py  cut: stages of equal time, within their memory
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.pipeline_schedules import cutting, halves, order, tied


@exercise(title="The order of a schedule", difficulty=3, minutes=30, official=order.OFFICIAL)
def schedule(schedule: Any) -> dict[str, Any]:
    """Judge ``schedule(p, m, v)``."""
    return judge(order.OFFICIAL, order.play, order.CASES, schedule, timeout=30)


@exercise(title="The backward pass in two halves", difficulty=2, minutes=20, official=halves.OFFICIAL)
def backward_halves(forward: Any, backward_input: Any, backward_weight: Any) -> dict[str, Any]:
    """Judge ``forward(stage, x)``, ``backward_input(kept, gradient)`` and ``backward_weight(kept)``."""
    return judge(halves.OFFICIAL, halves.play, halves.draw, forward, backward_input, backward_weight, timeout=30)


@exercise(title="One matrix at both ends", difficulty=2, minutes=25, official=tied.OFFICIAL)
def tied_step(tied_step: Any) -> dict[str, Any]:
    """Judge ``tied_step(table, block, tokens, targets, micro_batches, ends)``."""
    return judge(tied.OFFICIAL, tied.play, tied.CASES, tied_step, ranks=(3, 2, 1, 4))


@exercise(title="Where to cut", difficulty=2, minutes=15, official=cutting.OFFICIAL)
def cut(cut: Any) -> dict[str, Any]:
    """Judge ``cut(times, weights, activations, p, memory)``."""
    return judge(cutting.OFFICIAL, cutting.play, cutting.draw, cut, timeout=30)
