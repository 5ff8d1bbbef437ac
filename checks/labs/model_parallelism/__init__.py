"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

cutting.py   balanced_stages: where to cut, and each stage on its GPU
order.py     order_1f1b: who does what, in which order
steps.py     what both steps on simulated GPUs have to do; gpipe is filling.py, one_f_one_b is turns.py
ranks.py     on_real_ranks: a stage on each rank, by messages
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.model_parallelism import cutting, filling, order, ranks, steps, turns
from checks.points import passed

PARTS = {"balance": 1, "make_stages": 1}


@exercise(title="Balanced stages", difficulty=1, minutes=15, parts=PARTS, official=cutting.OFFICIAL)
def balanced_stages(balance: Any, make_stages: Any) -> dict[str, Any]:
    """Judge ``balance(costs, p)``, pieces for each stage, and ``make_stages(pieces, p)``, which uses it."""
    judge(cutting.OFFICIAL, cutting.play, cutting.COSTS, balance, make_stages)
    passed("balance")
    return judge(cutting.OFFICIAL, cutting.play, cutting.MODELS, balance, make_stages)


@exercise(title="A GPipe step", difficulty=2, minutes=20, official=filling.OFFICIAL)
def gpipe(gpipe_step: Any) -> dict[str, Any]:
    """Judge ``gpipe_step(stages, batch, targets, loss_fn, micro_batches)``."""
    return judge(filling.OFFICIAL, filling.play, steps.CASES, gpipe_step)


@exercise(title="The order of 1F1B", difficulty=1, minutes=10, official=order.OFFICIAL)
def order_1f1b(schedule_1f1b: Any) -> dict[str, Any]:
    """Judge ``schedule_1f1b(stage, p, m)``: a list such as ["F0", "F1", "B0", "F2", "B1", "B2"]."""
    return judge(order.OFFICIAL, order.play, order.CASES, schedule_1f1b)


@exercise(title="A 1F1B step", difficulty=3, minutes=25, official=turns.OFFICIAL)
def one_f_one_b(one_f_one_b_step: Any) -> dict[str, Any]:
    """Judge ``one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches)``."""
    return judge(turns.OFFICIAL, turns.play, steps.CASES, one_f_one_b_step)


@exercise(title="A pipeline on real ranks", difficulty=3, minutes=30, official=ranks.OFFICIAL)
def on_real_ranks(pipeline_step: Any) -> dict[str, Any]:
    """Judge ``pipeline_step(stage, shape, batch, targets, loss_fn, micro_batches)``, called on all ranks."""
    return judge(ranks.OFFICIAL, ranks.play, ranks.CASES, pipeline_step, ranks=(2, 3, 4))
