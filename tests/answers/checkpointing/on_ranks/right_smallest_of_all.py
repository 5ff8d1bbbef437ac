import io
import os
import random
import zipfile
from pathlib import Path

import torch
import torch.distributed as dist


def good_steps(folder):
    steps = []
    for path in Path(folder).glob("step-*.pt"):
        try:
            with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
                if not archive.testzip():
                    steps.append(int(path.stem.removeprefix("step-")))
        except (zipfile.BadZipFile, OSError):
            continue
    return set(steps)


def train_on_ranks(task, folder):
    """All ranks read; they go on from the newest checkpoint that is good for every one of them."""
    parts, folder = task.new(), Path(folder)
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = [None] * size
    dist.all_gather_object(seen, good_steps(folder))
    first = max(set.intersection(*seen), default=0)
    if first:
        saved = torch.load(folder / f"step-{first}.pt")
        for name in saved["states"]:
            parts[name].load_state_dict(saved["states"][name])
        torch.set_rng_state(saved["torch"][rank])
        random.setstate(saved["python"][rank])
    for done in range(first + 1, task.steps + 1):
        task.step(done - 1, parts)
        if done % task.every:
            continue
        generators = [torch.empty_like(torch.get_rng_state()) for _ in range(size)] if rank == 0 else None
        dist.gather(torch.get_rng_state(), generators)
        of_python = [None] * size if rank == 0 else None
        dist.gather_object(random.getstate(), of_python)
        if rank == 0:
            states = {name: part.state_dict() for name, part in parts.items()}
            half = folder / "half.tmp"
            torch.save({"states": states, "torch": generators, "python": of_python}, half)
            with half.open("rb+") as file:
                os.fsync(file)
            half.replace(folder / f"step-{done}.pt")
            (folder / f"step-{done - 3 * task.every}.pt").unlink(missing_ok=True)
        dist.barrier()
    return parts
