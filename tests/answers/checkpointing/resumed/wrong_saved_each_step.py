import os
import random

import torch

REJECTED_WITH = "a save every 5 steps is enough"


def save(state, path):
    with open(f"{path}.tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def train(task, folder):
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
        if True:
            states = {name: part.state_dict() for name, part in parts.items()}
            random_numbers = {"torch": torch.get_rng_state(), "python": random.getstate()}
            save({"done": number + 1, "parts": states, **random_numbers}, path)
    return parts
