"""Rank 1 is busy with its data; rank 0 waits under DDP. torch.distributed.debug asks both where they are."""

import sys
import time
from datetime import timedelta
from urllib.request import urlopen

import torch
import torch.distributed as dist
from torch.distributed.debug import start_debug_server
from torch.nn.parallel import DistributedDataParallel

PORT = int(sys.argv[1])  # of a page in a browser: http://127.0.0.1:PORT
SLOW = int(sys.argv[2])  # the step


def load(step: int) -> torch.Tensor:
    if step == SLOW and dist.get_rank() == 1:
        time.sleep(1)  # a slow file; and as if you had opened the page meanwhile:
        print(urlopen(f"http://127.0.0.1:{PORT}/stacks").read().decode())
    return torch.ones(2, 4)


dist.init_process_group("gloo", timeout=timedelta(seconds=30))
start_debug_server(port=PORT)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
for step in range(3):
    loss = model(load(step)).sum()
    loss.backward()
