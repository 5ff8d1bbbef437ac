"""Exercise 3 of the lab on checkpoints: the newest good one, on two ranks. What is not here is in the official solution."""

import hashlib
import io
import os
import pickle
import random
import re
import zipfile
from pathlib import Path

import torch
import torch.distributed as dist
from known_answers import right, wrong

WAIT = "            dist.barrier()\n"
CHECKED = """            with zipfile.ZipFile(f"{folder}/step-{step}.pt") as archive:
                if archive.testzip() is None:
                    good.add(step)
"""


@right("rank 0 alone reads, and gives all to the others")
def from_rank_0():
    def newest_good(folder):
        found = (re.fullmatch(r"step-(\d+)\.pt", name) for name in os.listdir(folder))
        for step in sorted((int(match[1]) for match in found if match), reverse=True):
            try:
                with zipfile.ZipFile(io.BytesIO(Path(folder, f"step-{step}.pt").read_bytes())) as archive:
                    if not archive.testzip():
                        return torch.load(f"{folder}/step-{step}.pt")
            except (zipfile.BadZipFile, OSError):
                continue
        return {"done": 0}

    def train_on_ranks(task, folder):
        parts, folder = task.new(), Path(folder)
        rank, size = dist.get_rank(), dist.get_world_size()
        found = [newest_good(folder) if rank == 0 else None]
        dist.broadcast_object_list(found, src=0)
        saved = found[0]
        if saved["done"]:
            for name in saved["states"]:
                parts[name].load_state_dict(saved["states"][name])
            torch.set_rng_state(saved["torch"][rank])
            random.setstate(saved["python"][rank])
        for done in range(saved["done"] + 1, task.steps + 1):
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
                torch.save({"done": done, "states": states, "torch": generators, "python": of_python}, half)
                with half.open("rb+") as file:
                    os.fsync(file)
                half.replace(folder / f"step-{done}.pt")
                for old in range(
                    done - 3 * task.every, 0, -task.every
                ):  # (a kill may have come before the last of them)
                    (folder / f"step-{old}.pt").unlink(missing_ok=True)
            dist.barrier()
        return parts

    return (train_on_ranks,)


@right("pickled, with a checksum of one's own in front, sent as bytes; two are kept")
def own_checksum():
    def read(path):
        content = Path(path).read_bytes()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise ValueError("damaged")
        return content[32:]

    def newest(folder):
        names = [name for name in os.listdir(folder) if re.fullmatch(r"step-\d+\.pt", name)]
        for name in sorted(names, key=lambda name: -int(name[5:-3])):
            try:
                return read(os.path.join(folder, name))
            except (OSError, ValueError):
                continue
        return b""

    def train_on_ranks(task, folder):
        parts, me = task.new(), dist.get_rank()
        content = [newest(folder)] if me == 0 else [None]
        dist.broadcast_object_list(content)
        start = 0
        if content[0]:
            start, states, generators = pickle.loads(content[0])
            for name, state in states.items():
                parts[name].load_state_dict(state)
            torch.set_rng_state(generators[me][0])
            random.setstate(generators[me][1])
        for step in range(start, task.steps):
            task.step(step, parts)
            if (step + 1) % task.every == 0:
                everyone = [None] * dist.get_world_size()
                dist.all_gather_object(everyone, (torch.get_rng_state(), random.getstate()))
                if me == 0:
                    states = {name: part.state_dict() for name, part in parts.items()}
                    content = pickle.dumps((step + 1, states, everyone))
                    with open(os.path.join(folder, "new"), "wb") as file:
                        file.write(hashlib.sha256(content).digest() + content)
                        file.flush()
                        os.fsync(file.fileno())
                    os.replace(os.path.join(folder, "new"), os.path.join(folder, f"step-{step + 1}.pt"))
                    for path in sorted(Path(folder).glob("step-*.pt"), key=lambda path: int(path.stem[5:]))[:-2]:
                        path.unlink()
                dist.barrier()
        return parts

    return (train_on_ranks,)


right("the barrier is before the next step, and at the end", {
    WAIT: "", "        task.step(number, parts)\n": "        dist.barrier()\n        task.step(number, parts)\n",
    "    return parts": "    dist.barrier()\n    return parts",
})  # fmt: skip


wrong("each rank for itself", "different checkpoints", {
    "    dist.all_gather_object(good, good_steps(folder))": "    good = [good_steps(folder)]"
})  # fmt: skip
wrong("no checksum", "is that checkpoint good", {
    CHECKED: '            torch.load(f"{folder}/step-{step}.pt")\n            good.add(step)\n'
})  # fmt: skip
wrong("no barrier", "at a barrier", {WAIT: ""})
wrong("the random numbers of rank 0", "on rank 1", {'["random"][rank]': '["random"][0]'})
wrong("all are kept", "and nothing else", {"[:-3]": "[:0]"})
