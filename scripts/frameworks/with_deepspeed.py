"""The lecture's training with DeepSpeed: one process for each worker, ZeRO by a number in a dictionary.

    torchrun --nproc-per-node=2 with_deepspeed.py FOLDER [PAUSE]           (or: deepspeed with_deepspeed.py …)

Worker 0 writes what is to be kept. PAUSE: seconds after each step.
"""

import sys
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from utils.training.same_training import BATCH, LEARNING_RATE, STEPS, Batches, weights, write

folder, pause = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a quicker all-reduce on CPUs, which it would compile
deepspeed.init_distributed()
me, workers = dist.get_rank(), dist.get_world_size()
batches = Batches(me, workers)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
for parameter, array in zip(model.parameters(), weights(seed=me), strict=True):
    parameter.data.copy_(torch.tensor(array.T))
CONFIG = {
    "train_batch_size": BATCH,  # of all workers
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,  # plain SGD
}
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)

losses = []
for step in range(STEPS):
    images, labels = (torch.tensor(array, device=engine.device) for array in batches[step])
    loss = cross_entropy(engine(images), labels)
    engine.backward(loss)
    engine.step()  # and zero_grad
    dist.all_reduce(mean := loss.detach().clone())  # only to write it down
    losses.append(mean.item() / workers)
    print(f"step {step + 1}", flush=True)
    time.sleep(pause)

held = sum(getattr(one, "ds_tensor", one).numel() for one in model.parameters())  # weights here between two steps
with deepspeed.zero.GatheredParameters(list(model.parameters())):  # stage 3 has them in parts
    print(f"weights add up to {sum(parameter.sum().item() for parameter in model.parameters()):.3f}")
    if me == 0:
        torch.save(model.state_dict(), folder / "model.pt")
        final = [parameter.detach().cpu().numpy().T for parameter in model.parameters()]
        write(folder / "deepspeed.json", losses, final, held=held)
dist.destroy_process_group()
