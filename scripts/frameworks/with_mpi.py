"""The lecture's training with MPI: one process for each worker, and every collective by hand.

    mpiexec -n 2 python with_mpi.py FOLDER [PAUSE]

Worker 0 writes what is to be kept. PAUSE: seconds after each step.
"""

import sys
import time
from pathlib import Path

import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from utils.training.same_training import LEARNING_RATE, STEPS, Batches, weights, write

folder, pause = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0
world = MPI.COMM_WORLD
me, workers = world.Get_rank(), world.Get_size()
batches = Batches(me, workers)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
for parameter, array in zip(model.parameters(), weights(seed=me), strict=True):
    parameter.data.copy_(torch.tensor(array.T))
    world.Bcast(parameter.data)  # gives all workers the parameters of worker 0
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

losses = []
for step in range(STEPS):
    images, labels = map(torch.tensor, batches[step])
    loss = cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        world.Allreduce(MPI.IN_PLACE, parameter.grad)  # the sum, in the gradient's own memory
        parameter.grad /= workers
    optimizer.step()
    losses.append(world.allreduce(loss.item()) / workers)  # only to write it down
    print(f"step {step + 1}", flush=True)
    time.sleep(pause)

print(f"weights add up to {sum(parameter.sum().item() for parameter in model.parameters()):.3f}")
if me == 0:
    torch.save(model.state_dict(), folder / "model.pt")
    write(folder / "mpi.json", losses, [parameter.detach().numpy().T for parameter in model.parameters()])
