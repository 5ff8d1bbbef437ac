import os


import random


import re


import tempfile


import zipfile


import torch


import torch.distributed as dist


from checks.labs import checkpointing as check


from checks.labs.checkpointing.resume_task import Task


def save(state, path):
    ### BEGIN SOLUTION
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):  # not if opening it has failed
            os.unlink(temporary)
        raise
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def train(task, folder):
    ### BEGIN SOLUTION
    path, parts, done = f"{folder}/last.pt", task.new(), 0
    if os.path.exists(path):
        found = torch.load(path)
        done = found["done"]
        for name, part in parts.items():
            part.load_state_dict(found["parts"][name])
        torch.set_rng_state(found["torch"])
        random.setstate(found["python"])
    for number in range(done, task.steps):
        task.step(number, parts)
        if (number + 1) % task.every == 0:
            states = {name: part.state_dict() for name, part in parts.items()}
            random_numbers = {"torch": torch.get_rng_state(), "python": random.getstate()}
            save({"done": number + 1, "parts": states, **random_numbers}, path)
    return parts


def train_on_ranks(task, folder):
    ### BEGIN SOLUTION
    parts, done, rank = task.new(), 0, dist.get_rank()
    good = [None] * dist.get_world_size()
    dist.all_gather_object(good, good_steps(folder))  # numbers travel, and no states
    if for_all := set.intersection(*good):
        done = max(for_all)
        found = torch.load(f"{folder}/step-{done}.pt")
        for name, part in parts.items():
            part.load_state_dict(found["parts"][name])
        of_torch, of_python = found["random"][rank]
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
    for number in range(done, task.steps):
        task.step(number, parts)
        if (number + 1) % task.every == 0:
            random_numbers = [None] * dist.get_world_size()
            dist.all_gather_object(random_numbers, (torch.get_rng_state(), random.getstate()))
            if rank == 0:
                states = {name: part.state_dict() for name, part in parts.items()}
                save({"parts": states, "random": random_numbers}, f"{folder}/step-{number + 1}.pt")
                for step in steps_in(folder)[:-3]:
                    os.unlink(f"{folder}/step-{step}.pt")
            dist.barrier()
    return parts


def steps_in(folder):
    found = (re.fullmatch(r"step-(\d+)\.pt", name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in found if match)


def good_steps(folder):
    good = set()
    for step in steps_in(folder):
        try:
            with zipfile.ZipFile(f"{folder}/step-{step}.pt") as archive:
                if archive.testzip() is None:
                    good.add(step)
        except Exception:
            pass  # cut off, or empty
    return good
