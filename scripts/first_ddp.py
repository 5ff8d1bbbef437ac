"""Trains a small network on handwritten digits, on all ranks that torchrun starts."""

import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

device = torch.device("cpu")
if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):  # a GPU for each process on this machine
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

digits = load_digits()
images = torch.tensor(digits.images[:1440], dtype=torch.float32)[rank::world_size, None] / 16  # my share
labels = torch.tensor(digits.target[:1440])[rank::world_size]
images, labels = images.to(device), labels.to(device)

torch.manual_seed(rank)
layers = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
model = DistributedDataParallel(nn.Sequential(*layers).to(device))  # from here on all ranks have rank 0's parameters
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, 6):
    for batch in torch.randperm(len(images)).split(36):
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()  # the gradients are averaged over the ranks in here
        optimizer.step()
    dist.all_reduce(total := loss.detach())
    if rank == 0:
        print(f"epoch {epoch}: loss {total.item() / world_size:.2f}", flush=True)

dist.destroy_process_group()
time.sleep(0.3)  # torch 2.13: a thread of gloo needs a moment to end (pytorch issue 190489)
