"""Every process says who it is; then all of them add up their ranks. Start it with torchrun."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # meet the others: torchrun has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
rank, world_size = dist.get_rank(), dist.get_world_size()

total = torch.tensor([rank])
dist.all_reduce(total)
# One write for the whole line: torchrun starts Python unbuffered, and lines of several ranks would mix.
print(f"I am rank {rank} of {world_size}, local rank {os.environ['LOCAL_RANK']}; the sum is {total.item()}\n", end="")

dist.destroy_process_group()
time.sleep(0.3)  # torch 2.13: a thread of gloo needs a moment to end (pytorch issue 190489)
