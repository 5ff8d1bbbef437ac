"""The exercises of this lab: a save that survives a kill, exact resumes on one and two ranks.

saves.py       saving: killed at every step with files; save_verdicts.py judges it
resuming.py    resumed and on_ranks: kills.py plays their lives, watched.py is in them, saved_files.py damages files;
               life_verdicts.py and file_verdicts.py judge
resume_task.py the training that is resumed: given to who does the exercise
lives.py       processes that are watched and killed; folder_events.py tells what happens to names
"""

from __future__ import annotations

from typing import Any

from checks.checkpointing import resuming, saves
from checks.contracts import judge
from checks.framework import exercise


@exercise(title="A save that survives", difficulty=1, minutes=20)
def saving(save: Any) -> dict[str, Any]:
    """Judge ``save(state, path)``, killed at every step with files and at many bytes, and on full disks."""
    return judge(saves.CONTRACT, save)


@exercise(title="Killed twenty times", difficulty=2, minutes=30)
def resumed(train: Any) -> dict[str, Any]:
    """Judge ``train(task, folder)`` in one process, killed and started again until it is done."""
    return judge(resuming.ALONE, train)


@exercise(title="The newest good one, on two ranks", difficulty=3, minutes=40)
def on_ranks(train_on_ranks: Any) -> dict[str, Any]:
    """Judge ``train_on_ranks(task, folder)`` on two ranks, with kills and damaged checkpoints."""
    return judge(resuming.ON_RANKS, train_on_ranks)
