"""scripts/train_resumable.py, held at certain steps, so that a test decides what happens there. For torchrun.

COURSE_HOLD="5:1 10:2": after the checkpoint of step 5 stay there as long as there is 1 rank, after that of step 10 as
long as there are 2. Ranks that are held go on talking, as in training: the death of one is an error on the others.
"""

from __future__ import annotations

import os
import runpy
import time
from pathlib import Path

import torch
import torch.distributed as dist

from utils.training.checkpoints import Checkpoints

held = {tuple(map(int, point.split(":"))) for point in os.environ["COURSE_HOLD"].split()}
save = Checkpoints.save


def save_and_hold(self, step, parts) -> None:
    save(self, step, parts)
    while (step, dist.get_world_size()) in held:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)


Checkpoints.save = save_and_hold
runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "train_resumable.py"), run_name="__main__")
