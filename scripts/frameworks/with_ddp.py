"""The lecture's training with PyTorch's DistributedDataParallel: one process for each worker.

    torchrun --nproc-per-node=2 with_ddp.py FOLDER [PAUSE]

Worker 0 writes what is to be kept. PAUSE: seconds after each step.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from utils.training.exit import leave
from utils.training.same_training import LEARNING_RATE, STEPS, Batches, weights, write

folder, pause = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0
dist.init_process_group(timeout=timedelta(seconds=30))  # NCCL for tensors on GPUs, gloo for others
me, workers = dist.get_rank(), dist.get_world_size()
if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
    torch.set_default_device(f"cuda:{os.environ['LOCAL_RANK']}")
batches = Batches(me, workers)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
for parameter, array in zip(model.parameters(), weights(seed=me), strict=True):
    parameter.data.copy_(torch.tensor(array.T))
whole = DistributedDataParallel(model)  # gives all workers the parameters of worker 0
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

losses = []
for step in range(STEPS):
    images, labels = map(torch.tensor, batches[step])
    loss = cross_entropy(whole(images), labels)
    optimizer.zero_grad()
    loss.backward()  # and the mean of the gradients, on the way
    optimizer.step()
    dist.all_reduce(loss.data)  # only to write it down
    losses.append(loss.item() / workers)
    print(f"step {step + 1}", flush=True)
    time.sleep(pause)

print(f"weights add up to {sum(parameter.sum().item() for parameter in model.parameters()):.3f}")
if me == 0:
    torch.save(model.state_dict(), folder / "model.pt")
    write(folder / "ddp.json", losses, [parameter.detach().cpu().numpy().T for parameter in model.parameters()])
leave()
