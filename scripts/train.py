"""Train a small network on handwritten digits: one file, from a laptop to a cluster. It needs nothing of this course.

    python scripts/train.py --folder runs/first                                     one process
    torchrun --standalone --nproc-per-node 2 scripts/train.py --folder runs/first   so many ranks, each with its GPU
    sbatch scripts/train.sbatch --folder runs/first                                 several nodes

With GPUs it uses NCCL and bfloat16, without them gloo and float32. The same command again goes on after the last
checkpoint, also with another number of ranks. A SIGTERM, or a file "stop" in the folder, lets it save and end: then its
last line says how to go on. Losses are in FOLDER/losses.jsonl. Yours to change: ``digits``, ``network``, ``loss_of``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def digits(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 images of 8 × 8 pixels, and which digit each shows. (They are few, so every rank has them all.)"""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32, device=device)[:, None] / 16
    return images, torch.tensor(data.target, device=device)


def network() -> nn.Module:
    layers = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2)
    return nn.Sequential(*layers, nn.Linear(256, 10))


def loss_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(images), labels)


def main(args: argparse.Namespace) -> None:
    device = join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    asked: list[int] = []  # signals that ask us to stop; torchrun hands a SIGTERM on to its workers
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(args.seed)
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    parts = {"model": model.module, "optimizer": optimizer, "schedule": schedule}
    step, samples = resume(folder / "last.pt", parts)
    torch.manual_seed(args.seed + 1000 * (rank + 1) + step)  # dropout of its own on every rank, after a restart too
    if rank == 0:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        print(f"attempt {attempt}: {ranks} ranks start at step {step}", flush=True)

    images, labels = digits(device)
    began, since, stopping = time.perf_counter(), step, False
    while step < args.steps and not stopping:
        mine = indices(len(images), samples, args.batch * ranks, args.seed)[rank::ranks].to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(model, images[mine], labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        step, samples = step + 1, samples + args.batch * ranks
        stop = torch.tensor(float(bool(asked) or (rank == 0 and (folder / "stop").exists())), device=device)
        dist.all_reduce(stop, dist.ReduceOp.MAX)  # all ranks stop after the same step, or those that go on would hang
        stopping = bool(stop)
        if step % args.every == 0 or step == args.steps or stopping:
            dist.all_reduce(mean := loss.detach().float(), dist.ReduceOp.SUM)
            if rank == 0:
                save(folder / "last.pt", parts, step, samples)
                speed = round((step - since) * args.batch * ranks / (time.perf_counter() - began))
                line = {"step": step, "loss": mean.item() / ranks, "samples a second": speed, "ranks": ranks}
                with open(folder / "losses.jsonl", "a", encoding="utf-8") as file:
                    print(json.dumps(line), file=file)
            dist.barrier()  # nobody ends, or dies, while rank 0 writes
            began, since = time.perf_counter(), step

    if rank == 0:
        if step < args.steps:
            (folder / "stop").unlink(missing_ok=True)
            print(f"stopped after step {step}: the same command goes on from here", flush=True)
        else:
            with torch.no_grad():
                whole = loss_of(model.module.eval(), images, labels).item()
            print(f"step {step}: loss {whole:.6f}", flush=True)
    dist.destroy_process_group()
    time.sleep(0.3)  # torch 2.13: a thread of gloo needs a moment to end (pytorch issue 190489)


def join() -> torch.device:
    """Meet the other ranks; a program that was started by hand is a world of one. Returns this rank's device."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    use_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks
    device = torch.device("cuda", local_rank) if use_gpus else torch.device("cpu")
    if use_gpus:
        torch.cuda.set_device(device)
    backend = "nccl" if use_gpus else "gloo"
    if dist.is_initialized():  # Ray Train has done it
        return device
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device


def indices(length: int, start: int, count: int, seed: int) -> torch.Tensor:
    """Which samples come next, after so many: every epoch has an order of its own, the same on all ranks."""
    found = []
    for position in range(start // length, (start + count - 1) // length + 1):  # the epochs that these are of
        order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + position))
        found.append(order[max(0, start - position * length) : start + count - position * length])
    return torch.cat(found)


def save(path: Path, parts: dict[str, nn.Module], step: int, samples: int) -> None:
    """Write a checkpoint so that a kill at any moment leaves the old one or the new one."""
    new = path.with_suffix(".new")
    with open(new, "wb") as file:
        torch.save({"step": step, "samples": samples} | {name: part.state_dict() for name, part in parts.items()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def resume(path: Path, parts: dict[str, nn.Module]) -> tuple[int, int]:
    """Load the checkpoint, on every rank. Returns how many steps and how many samples are done."""
    if not path.exists():
        return 0, 0
    found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(found[name])
    return found["step"], found["samples"]


def options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits with DDP.")
    add = parser.add_argument
    add("--folder", required=True, help="for the checkpoint and the losses: one that all nodes see")
    add("--steps", type=int, default=200, help="train so many in all (default: %(default)s)")
    add("--batch", type=int, default=32, help="samples of each rank in a step (default: %(default)s)")
    add("--every", type=int, default=20, help="save after so many steps (default: %(default)s)")
    add("--learning-rate", type=float, default=0.01, help="(default: %(default)s)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    return parser.parse_args(words)


if __name__ == "__main__":
    main(options())
