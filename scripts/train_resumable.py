"""Train a small network on digits, save checkpoints, and go on from the last one. See the lecture on checkpointing.

torchrun --standalone --nproc-per-node 2 scripts/train_resumable.py --folder FOLDER

Start it again with the same folder, or let torchrun do it (--max-restarts 1): it goes on from the latest good
checkpoint, and ends with the same parameters, bit for bit, as a training that was never interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from utils.training import data, rendezvous
from utils.training.checkpoints import CheckpointError, Checkpoints
from utils.training.exit import leave
from utils.training.resumable import ResumableSampler, endless_batches, settle_buckets


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train on digits with DistributedDataParallel, save checkpoints, resume from the latest good one.",
        epilog="Start it with torchrun. The same folder again: it goes on where it was.",
    )
    add = parser.add_argument
    add("--folder", required=True, help="where checkpoints are; it must exist")
    add("--steps", type=int, default=20, help="train so many steps in all (default: %(default)s)")
    add("--checkpoint-every", type=int, default=5, metavar="STEPS", help="0: never (default: %(default)s)")
    add("--keep", type=int, default=3, metavar="N", help="keep the last N checkpoints (default: %(default)s)")
    add("--batch", type=int, default=16, help="images per rank and step (default: %(default)s)")
    add("--half", action="store_true", help="compute in float16, with a gradient scaler")
    add("--seed", type=int, default=0, help="of parameters, order and dropout (default: %(default)s)")
    add("--any-world-size", action="store_true", help="resume with another number of ranks too (then not bit for bit)")
    add("--die-at", type=int, metavar="STEP", help="in torchrun's first attempt, one rank is killed before this step")
    add("--die-rank", type=int, default=0, metavar="RANK", help="which one (default: %(default)s)")
    return parser.parse_args()


def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # the network is tiny: more threads would only get into each other's way
    device = rendezvous.init_process_group()
    rank, attempt = dist.get_rank(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    torch.manual_seed(args.seed)  # the same parameters on all ranks …
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    model = DistributedDataParallel(network.to(device))
    torch.manual_seed(1000 * args.seed + rank)  # … and dropout of its own on each
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    digits = data.digits()
    images = TensorDataset(digits.train_images[:480], digits.train_labels[:480])  # few, so that epochs end
    sampler = ResumableSampler(images, seed=args.seed)

    checkpoints = Checkpoints(args.folder, args.keep)
    scaler = torch.amp.GradScaler(device.type, enabled=args.half)
    settle_buckets(model, digits.train_images[:1].to(device))
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "sampler": sampler, "scaler": scaler}
    done = checkpoints.resume(parts, exact=not args.any_world_size)
    if rank == 0:
        for sentence in checkpoints.skipped:
            print(f"passed over: {sentence}")
        print(f"attempt {attempt}: {dist.get_world_size()} ranks start at step {done}", flush=True)

    batches = endless_batches(sampler, args.batch)
    for step in range(done + 1, args.steps + 1):
        if (step, rank, attempt) == (args.die_at, args.die_rank, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        pixels, labels = (part.to(device) for part in next(batches))
        with torch.autocast(device.type, torch.float16, enabled=args.half):
            loss = cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        sampler.advance(len(labels))
        if args.checkpoint_every and step % args.checkpoint_every == 0:
            checkpoints.save(step, parts)

    if rank == 0:
        model.eval()
        loss = cross_entropy(network(digits.train_images.to(device)), digits.train_labels.to(device))
        print(f"step {max(done, args.steps)}: loss {loss.item():.6f}, parameters {checksum(network)}")


def checksum(model: nn.Module) -> str:
    """The first 16 digits of the SHA-256 of all parameters' bytes: equal only if every bit is."""
    every = b"".join(value.detach().cpu().numpy().tobytes() for value in model.parameters())
    return hashlib.sha256(every).hexdigest()[:16]


if __name__ == "__main__":
    try:
        main(options())
    except CheckpointError as error:  # all ranks have the same; one says it
        raise SystemExit(f"train_resumable.py: {error}" if dist.get_rank() == 0 else 1) from None
    leave()
