"""The exercises of this lab. Each check plays lives of an answer in fresh processes, and refuses (``checks/engine``).

saves.py        saving: killed at every step with files
alone.py        resumed: twenty lives of a training; newest.py  on_ranks: lives of two ranks, with damaged checkpoints
trainings.py    lives of a training, and what a resume has lost
killing.py      processes that are watched and killed (also those of the lab on sharded checkpoints)
resume_task.py  the training that is resumed: given to who does the exercise
"""

from __future__ import annotations

from typing import Any

from checks.engine.exercises import exercise
from checks.engine.processes import run
from checks.labs.checkpointing import alone, newest, saves


def _judge(module: Any, answer: Any) -> dict[str, Any]:
    """Its cases, each in a fresh process. Returns the figures of the first one."""
    first, *_ = [run(module.play, case, answer, timeout=90) for case in module.CASES]
    return first


@exercise(title="A save that survives", difficulty=1, minutes=20, official=saves.OFFICIAL)
def saving(save: Any) -> dict[str, Any]:
    """Judge ``save(state, path)``, killed at every step with files and at many bytes, and on full disks."""
    return _judge(saves, save)


@exercise(title="Killed twenty times", difficulty=2, minutes=30, official=alone.OFFICIAL)
def resumed(train: Any) -> dict[str, Any]:
    """Judge ``train(task, folder)`` in one process, killed and started again until it is done."""
    return _judge(alone, train)


@exercise(title="The newest good one, on two ranks", difficulty=3, minutes=40, official=newest.OFFICIAL)
def on_ranks(train_on_ranks: Any) -> dict[str, Any]:
    """Judge ``train_on_ranks(task, folder)`` on two ranks, with kills and damaged checkpoints."""
    return _judge(newest, train_on_ranks)
