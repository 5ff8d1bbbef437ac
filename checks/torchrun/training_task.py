"""The training of this lab's script: some digits, a linear model, one process. It learns in a second."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from checks.contracts.guarding import facade
from utils.training.data import digits


class Task:
    """What the script finds where it runs: its data, the GPUs of its node, a place for its model.

    ``noted``: which samples were read, call by call, and which GPUs were taken.

    Args:
        folder: where the model goes.
        gpus: how many GPUs this node has. They stand for real ones: tensors stay on the CPU.
        given: what ``script_runs.draw`` gives.
    """

    def __init__(self, folder: str, gpus: int, given: dict[str, Any]) -> None:
        self.samples, self.batch, self.epochs, self.lr = (given[one] for one in ("samples", "batch", "epochs", "lr"))
        self._delays, self._pid = random.Random(f"{given['seed']} {os.environ.get('RANK')}"), os.getpid()
        self.path = str(Path(folder, "model.pt"))
        self._gpus = gpus
        self._data: Any = None
        self.noted: dict[str, list[Any]] = {"reads": [], "taken": []}

    def gpu(self, index: int) -> torch.device:
        """Take a GPU of this node. Here they are simulated: the device is the CPU."""
        self.noted["taken"].append(index)
        if not 0 <= index < self._gpus:
            raise RuntimeError(
                f"this node has the GPUs 0 to {self._gpus - 1}, and no GPU {index}: take the one with your local rank"
            )
        return torch.device("cpu")

    def read(self, indices: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The images [n, 64] and labels [n] of these samples."""
        if os.getpid() != self._pid:
            raise RuntimeError("task.read works in the rank's own process, and not in a DataLoader's worker")
        chosen = [int(index) for index in indices]
        self.noted["reads"].append(chosen)
        time.sleep(self._delays.choice((0, 0, 0, 0.004)))  # disks are not equally quick
        if self._data is None:
            self._data = digits()
        return self._data.train_images[chosen].flatten(1), self._data.train_labels[chosen]

    def given(self) -> Any:
        """What an answer gets of it: not what is noted, nor the data of others."""
        return facade(self, "samples", "batch", "epochs", "lr", "path", "gpu", "read")


def single_process(task: Any) -> None:
    """The script as it is given, for one process."""
    device = task.gpu(0)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10).to(device)
    for epoch in range(task.epochs):
        order = torch.randperm(task.samples, generator=torch.Generator().manual_seed(epoch))
        for step, batch in enumerate(order.split(task.batch)):
            images, labels = task.read(batch)
            loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= task.lr * parameter.grad
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    torch.save(model.state_dict(), task.path)
