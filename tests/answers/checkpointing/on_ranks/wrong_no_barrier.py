import os
import random
import re
import zipfile

import torch
import torch.distributed as dist

REJECTED_WITH = "let all wait at a barrier"


def save(state, path):
    with open(f"{path}.tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def steps_in(folder):
    found = (re.fullmatch(r"step-(\d+)\.pt", name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in found if match)


def newest_good(folder):
    for step in reversed(steps_in(folder)):
        path = f"{folder}/step-{step}.pt"
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is None:
                    return torch.load(path)
        except Exception:
            pass  # cut off
    return None


def train_on_ranks(task, folder):
    parts, done, rank = task.new(), 0, dist.get_rank()
    found = [newest_good(folder) if rank == 0 else None]
    dist.broadcast_object_list(found, src=0)
    if found[0] is not None:
        done = found[0]["done"]
        for name, part in parts.items():
            part.load_state_dict(found[0]["parts"][name])
        torch.set_rng_state(found[0]["random"][rank][0])
        random.setstate(found[0]["random"][rank][1])
    for number in range(done, task.steps):
        task.step(number, parts)
        if (number + 1) % task.every == 0:
            states = [None] * dist.get_world_size()
            dist.all_gather_object(states, (torch.get_rng_state(), random.getstate()))
            if rank == 0:
                kept = {name: part.state_dict() for name, part in parts.items()}
                save({"done": number + 1, "parts": kept, "random": states}, f"{folder}/step-{number + 1}.pt")
                for step in steps_in(folder)[:-3]:
                    os.unlink(f"{folder}/step-{step}.pt")
    return parts
