"""The DDP program of many tutorials, repaired: `python both_ways.py` spawns two ranks, torchrun brings its own.

With --always-spawn it spawns in any case, as the tutorials do.
"""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train() -> None:
    rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    print(f"rank {rank} of {world_size} starts\n", end="", flush=True)  # one write: lines do not mix
    gpus = torch.cuda.device_count() >= world_size
    device = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    dist.init_process_group("nccl" if gpus else "gloo", timeout=timedelta(seconds=60))

    numbers = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(numbers, numbers.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(8, 1).to(device), device_ids=[local_rank] if gpus else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            mse_loss(model(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()

    loss = mse_loss(model.module(numbers.to(device)), numbers.sum(1, keepdim=True).to(device)).item()
    if rank == 0:
        print(f"{world_size} ranks, {len(sampler)} of {len(data)} samples each; loss {'small' if loss < 0.1 else loss}")
    dist.destroy_process_group()


def spawned(local_rank: int, world_size: int, port: str) -> None:
    os.environ |= {"RANK": str(local_rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--always-spawn", action="store_true")
    parser.add_argument("--port", default="29500")
    options = parser.parse_args()
    if "RANK" in os.environ and not options.always_spawn:  # torchrun has set it
        train()
    else:
        mp.spawn(spawned, args=(2, options.port), nprocs=2)
