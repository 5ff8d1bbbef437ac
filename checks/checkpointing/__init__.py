"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/core``).

saves.py        saving: killed at every step with files
alone.py        resumed: twenty lives of a training; newest.py  on_ranks: lives of two ranks, with damaged checkpoints
trainings.py    lives of a training, and what a resume has lost
killing.py      processes that are watched and killed
resume_task.py  the training that is resumed: given to who does the exercise

(lives.py and folder_events.py are of an older kind; the lab on sharded checkpoints still uses them.)
"""

from __future__ import annotations

from typing import Any

from checks.checkpointing import alone, newest, saves
from checks.core import judge
from checks.framework import exercise


@exercise(title="A save that survives", difficulty=1, minutes=20, official=saves.OFFICIAL)
def saving(save: Any) -> dict[str, Any]:
    """Judge ``save(state, path)``, killed at every step with files and at many bytes, and on full disks."""
    return judge(saves.OFFICIAL, saves.play, saves.CASES, save, timeout=60)


@exercise(title="Killed twenty times", difficulty=2, minutes=30, official=alone.OFFICIAL)
def resumed(train: Any) -> dict[str, Any]:
    """Judge ``train(task, folder)`` in one process, killed and started again until it is done."""
    return judge(alone.OFFICIAL, alone.play, alone.CASES, train, timeout=120)


@exercise(title="The newest good one, on two ranks", difficulty=3, minutes=40, official=newest.OFFICIAL)
def on_ranks(train_on_ranks: Any) -> dict[str, Any]:
    """Judge ``train_on_ranks(task, folder)`` on two ranks, with kills and damaged checkpoints."""
    return judge(newest.OFFICIAL, newest.play, newest.CASES, train_on_ranks, timeout=120)
