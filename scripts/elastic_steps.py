"""Counts steps on as many ranks as there are, and goes on where the last start has stopped.

torchrun --nnodes=1:2 --max-restarts=2 … scripts/elastic_steps.py --folder FOLDER

The state of this training is one number, the step, in FOLDER/step.txt. It ends when there is a file FOLDER/stop. Each
rank writes down what it did when, for a picture (lessons.launchers.torchrun.elastic). Set MACHINE to a name for the
machine: torchrun numbers nodes anew at each start.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from lessons.launchers.torchrun.elastic import Event, EventLog
from utils.training.exit import leave


def main() -> None:
    parser = argparse.ArgumentParser(description="Count steps on ranks that may come and go.")
    parser.add_argument("--folder", type=Path, required=True, help="for the state and the events; it must exist")
    parser.add_argument("--seconds", type=float, default=0.1, help="of one step (default: %(default)s)")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    saved = args.folder / "step.txt"
    step = torch.tensor([int(saved.read_text()) if saved.exists() else 0])
    dist.broadcast(step, src=0)
    log = EventLog(args.folder)
    machine = os.environ.get("MACHINE", "0")
    log.write(Event(psutil.Process().create_time(), "started", machine, rank, size, step.item()))
    print(f"rank {rank} of {size} goes on after step {step.item()}\n", end="", flush=True)  # one write
    go_on = torch.ones(1)
    while go_on:
        time.sleep(args.seconds)  # forward and backward
        go_on = torch.tensor([0.0 if (args.folder / "stop").exists() else 1.0])
        dist.all_reduce(go_on, dist.ReduceOp.MIN)  # all stop after the same step
        step += 1
        log.write(Event(time.time(), "step", machine, rank, size, step.item()))
        if rank == 0:
            new = saved.with_suffix(".new")
            new.write_text(str(step.item()))
            new.replace(saved)


if __name__ == "__main__":
    main()
    leave()
