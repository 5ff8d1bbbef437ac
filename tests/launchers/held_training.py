"""Twenty steps with a checkpoint after every fifth, held at certain steps, so that a test decides what happens there.

COURSE_HOLD="5:1 10:2": after the checkpoint of step 5 stay there as long as there is 1 rank, after that of step 10 as
long as there are 2. Ranks that are held go on talking, as in training: the death of one is an error on the others.
The whole model is a sum of gradients, each of which is 1: in the end it says how many have counted. For torchrun.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from utils.training import rendezvous
from utils.training.checkpoints import Checkpoints
from utils.training.exit import leave


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1))


rendezvous.init_process_group()
held = {tuple(map(int, point.split(":"))) for point in os.environ["COURSE_HOLD"].split()}
ranks, model, checkpoints = dist.get_world_size(), Sum(), Checkpoints(sys.argv[1])
done = checkpoints.resume({"model": model}, exact=False)
if dist.get_rank() == 0:
    print(f"{ranks} ranks start at step {done}", flush=True)
for step in range(done + 1, 21):
    gradient = torch.ones(1)
    dist.all_reduce(gradient)
    model.total += gradient / ranks
    if step % 5 == 0:
        checkpoints.save(step, {"model": model})
    while (step, ranks) in held:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
if dist.get_rank() == 0:
    print(f"step 20: {model.total.item():g} gradients")
leave()
