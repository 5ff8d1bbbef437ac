"""Every rank says who it is; then all add up their ranks. Start it with torchrun."""

import os

import torch
import torch.distributed as dist

from utils.training.exit import leave


def main() -> None:
    dist.init_process_group("gloo")  # reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun has set
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total)
    node, local_rank = os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"]
    who = f"node {node}, local rank {local_rank}: I am rank {dist.get_rank()} of {dist.get_world_size()}"
    # One write for the whole line: torchrun starts Python unbuffered, and lines of several ranks would mix.
    print(f"{who}; the sum of all ranks is {total.item()}\n", end="")


if __name__ == "__main__":
    main()
    leave()
