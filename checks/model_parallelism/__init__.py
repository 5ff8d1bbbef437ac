"""The exercises of this lab: stages, and pipelines of them. Each module holds contracts.

costs.py        balanced_stages: where to cut; balancing.py: each stage on its GPU
schedules.py    order_1f1b: who does what, in which order
pipelines.py    gpipe and one_f_one_b: steps, seen from all GPUs; one_device.py: what they have to compute
races.py        what two streams do with the same memory is in order
stages.py       in the rank: pieces, stages, and ideal GPUs
real_ranks.py   on_real_ranks: a stage on each rank, by messages; marked.py: its stages, and marks on what they do
"""

from __future__ import annotations

from typing import Any

from checks.contracts import judge
from checks.framework import exercise
from checks.model_parallelism import balancing, costs, pipelines, real_ranks, schedules
from checks.points import passed


@exercise(title="Balanced stages", difficulty=1, minutes=15, parts={"balance": 1, "make_stages": 1})
def balanced_stages(balance: Any, make_stages: Any) -> dict[str, Any]:
    """Judge ``balance(costs, p)``, pieces for each stage, and ``make_stages(pieces, p)``, which uses it."""
    figures = judge(costs.BALANCE, balance)
    passed("balance")
    return figures | judge(balancing.CONTRACT, make_stages)


@exercise(title="A GPipe step", difficulty=2, minutes=20)
def gpipe(gpipe_step: Any) -> dict[str, Any]:
    """Judge ``gpipe_step(stages, batch, targets, loss_fn, micro_batches)``."""
    return judge(pipelines.GPIPE_CONTRACT, gpipe_step)


@exercise(title="The order of 1F1B", difficulty=1, minutes=10)
def order_1f1b(schedule_1f1b: Any) -> dict[str, Any]:
    """Judge ``schedule_1f1b(stage, p, m)``: a list such as ["F0", "F1", "B0", "F2", "B1", "B2"]."""
    return judge(schedules.CONTRACT, schedule_1f1b)


@exercise(title="A 1F1B step", difficulty=3, minutes=25)
def one_f_one_b(one_f_one_b_step: Any) -> dict[str, Any]:
    """Judge ``one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches)``."""
    return judge(pipelines.ONE_F_ONE_B_CONTRACT, one_f_one_b_step)


@exercise(title="A pipeline on real ranks", difficulty=3, minutes=30)
def on_real_ranks(pipeline_step: Any) -> dict[str, Any]:
    """Judge ``pipeline_step(stage, shape, batch, targets, loss_fn, micro_batches)``, called on all ranks."""
    return judge(real_ranks.CONTRACT, pipeline_step)
