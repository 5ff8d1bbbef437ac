import os
import random
from pathlib import Path

import torch


class Run:
    """Everything that is saved has state_dict and load_state_dict; one more part holds the random numbers."""

    def __init__(self, task, folder):
        self.task, self.folder = task, Path(folder)
        self.parts = task.new()
        self.done = 0

    def files(self):
        return sorted(self.folder.glob("*.checkpoint"), key=lambda path: int(path.stem))

    def resume(self):
        if files := self.files():
            saved = torch.load(files[-1], weights_only=False)
            self.done = int(files[-1].stem)
            for part, state in zip(self.parts.values(), saved["states"], strict=True):
                part.load_state_dict(state)
            torch.random.set_rng_state(saved["generators"][0])
            random.setstate(saved["generators"][1])

    def save(self):
        generators = torch.random.get_rng_state(), random.getstate()
        saved = {"states": [part.state_dict() for part in self.parts.values()], "generators": generators}
        half = self.folder / "half"
        torch.save(saved, half)
        file = os.open(half, os.O_RDWR)
        os.fsync(file)
        os.close(file)
        half.rename(self.folder / f"{self.done}.checkpoint")


def train(task, folder):
    run = Run(task, folder)
    run.resume()
    while run.done < task.steps:
        task.step(run.done, run.parts)
        run.done += 1
        if run.done % task.every == 0:
            run.save()
    return run.parts
