"""The lecture's training with Accelerate: one process for each worker. The loop stays yours.

    torchrun --nproc-per-node=2 with_accelerate.py FOLDER [PAUSE]          (or: accelerate launch … with_accelerate.py)

Worker 0 writes what is to be kept. PAUSE: seconds after each step.
"""

import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy

from utils.training.same_training import LEARNING_RATE, STEPS, Batches, weights, write

folder, pause = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0
accelerator = Accelerator(cpu=not torch.cuda.is_available())  # else it takes a process without a GPU to be alone
me, workers = accelerator.process_index, accelerator.num_processes
batches = Batches(me, workers)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
for parameter, array in zip(model.parameters(), weights(seed=me), strict=True):
    parameter.data.copy_(torch.tensor(array.T))
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
whole, optimizer = accelerator.prepare(model, optimizer)  # here: DDP; by its settings also FSDP or DeepSpeed

losses = []
for step in range(STEPS):
    images, labels = (torch.tensor(array, device=accelerator.device) for array in batches[step])
    loss = cross_entropy(whole(images), labels)
    optimizer.zero_grad()
    accelerator.backward(loss)  # also scales the loss, where fp16 or accumulated steps ask for it
    optimizer.step()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())  # only to write it down
    print(f"step {step + 1}", flush=True)
    time.sleep(pause)

print(f"weights add up to {sum(parameter.sum().item() for parameter in model.parameters()):.3f}")
if accelerator.is_main_process:
    torch.save(model.state_dict(), folder / "model.pt")
    facts = {"wrapped": type(whole).__name__}
    final = [parameter.detach().cpu().numpy().T for parameter in model.parameters()]
    write(folder / "accelerate.json", losses, final, **facts)
accelerator.end_training()
