"""Rank 0 all-reduces, rank 1 broadcasts."""

import datetime

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
loss = torch.ones(1)

if dist.get_rank() == 0:
    dist.all_reduce(loss)
else:
    dist.broadcast(loss, src=0)
