"""The lecture's training with Horovod: one process for each worker.

    horovodrun -np 2 --gloo python with_horovod.py FOLDER [PAUSE]

Worker 0 writes what is to be kept. PAUSE: seconds after each step.
"""

import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy

from utils.training.same_training import LEARNING_RATE, STEPS, Batches, weights, write

folder, pause = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0
hvd.init()
me, workers = hvd.rank(), hvd.size()
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())  # each its own GPU; the model and the data must then go there
batches = Batches(me, workers)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
for parameter, array in zip(model.parameters(), weights(seed=me), strict=True):
    parameter.data.copy_(torch.tensor(array.T))
alone = LEARNING_RATE / workers  # what suits one worker alone, whose batch is as many times smaller
optimizer = torch.optim.SGD(model.parameters(), lr=alone * workers)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

losses = []
for step in range(STEPS):
    images, labels = map(torch.tensor, batches[step])
    loss = cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()  # and the mean of the gradients, on the way
    optimizer.step()  # when all of them are there
    losses.append(hvd.allreduce(loss.detach()).item())  # only to write it down
    print(f"step {step + 1}", flush=True)
    time.sleep(pause)

print(f"weights add up to {sum(parameter.sum().item() for parameter in model.parameters()):.3f}")
if me == 0:
    torch.save(model.state_dict(), folder / "model.pt")
    write(folder / "horovod.json", losses, [parameter.detach().numpy().T for parameter in model.parameters()])
