import os
import random

import torch

REJECTED_WITH = "too much work is lost"


def save(state, path):
    with open(f"{path}.tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def train(task, folder):
    parts, done = task.new(), 0
    names = sorted(name for name in os.listdir(folder) if name.endswith(".pt"))
    if names:
        found = torch.load(f"{folder}/{names[-1]}")
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
            save({"done": number + 1, "parts": states, **random_numbers}, f"{folder}/step-{number + 1}.pt")
    return parts
