"""What this lab's script finds where it runs: some digits, the GPUs of its node, a place for its model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from checks.engine import refuse
from utils.training.data import digits


class Task:
    """``noted``: which samples were read, call by call; ``taken``: which GPUs were taken, of so many on the node."""

    samples, batch, epochs, lr = 96, 24, 2, 0.3

    def __init__(self, folder: str, gpus: int) -> None:
        self.path = str(Path(folder, "model.pt"))
        self._gpus, self._pid, self._data = gpus, os.getpid(), digits()
        self.noted: list[list[int]] = []
        self.taken: list[int] = []

    def gpu(self, index: int) -> torch.device:
        """Take a GPU of this node. Here they are simulated: the device is the CPU."""
        words = f"this node has the GPUs 0 to {self._gpus - 1}, and no GPU {index}: take the one with your local rank"
        refuse(not 0 <= index < self._gpus, words)
        self.taken.append(index)
        return torch.device("cpu")

    def read(self, indices: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The images [n, 64] and labels [n] of these samples."""
        if os.getpid() != self._pid:
            raise RuntimeError("task.read works in the rank's own process, and not in a DataLoader's worker")
        chosen = [int(index) for index in indices]
        self.noted.append(chosen)
        return self._data.train_images[chosen].flatten(1), self._data.train_labels[chosen]
