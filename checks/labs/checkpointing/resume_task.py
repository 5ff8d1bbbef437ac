"""A training to kill and resume: small, with everything that an exact resume must bring back."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

SAMPLES, BATCH, FEATURES, CLASSES = 72, 4, 16, 4


class Decay:
    """A schedule: warms up for eight steps, then the learning rate falls by 3 % a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.steps = optimizer, 0

    def step(self) -> None:
        self.steps += 1
        self.optimizer.param_groups[0]["lr"] = 0.1 * min((self.steps + 1) / 8, 0.97 ** (self.steps - 7))

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


class Batches:
    """Deals samples out to ranks, in another order in each epoch. ``next`` gives the indices of a batch."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.epoch, self.position = rank, world_size, 0, 0

    def next(self) -> torch.Tensor:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        indices = order[self.rank :: self.world_size][self.position : self.position + BATCH]
        self.position += BATCH
        if self.position >= SAMPLES // self.world_size:
            self.epoch, self.position = self.epoch + 1, 0
        return indices

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class Task:
    """What there is to train. With a process group, gradients are averaged over its ranks.

    Args:
        steps: of the whole training.
        every: a checkpoint after so many steps.
    """

    def __init__(self, steps: int = 40, every: int = 5) -> None:
        self.steps, self.every = steps, every

    def new(self) -> dict[str, Any]:
        """The parts of a fresh training. All of them have ``state_dict`` and ``load_state_dict``.

        It seeds the random numbers: for the same parameters on all ranks, and then for dropout of its own on each.
        """
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(1000 + rank)
        random.seed(1000 + rank)
        batches = Batches(rank, world_size)
        return {"model": model, "optimizer": optimizer, "scheduler": Decay(optimizer), "batches": batches}

    def step(self, number: int, parts: dict[str, Any]) -> None:
        """Train step ``number`` (0, 1, …): one batch, turned over at random, with dropout."""
        indices = parts["batches"].next()
        inputs = torch.sin(torch.outer(indices + 1.0, torch.arange(1.0, FEATURES + 1)))
        if random.random() < 0.5:
            inputs = inputs.flip(1)
        parts["optimizer"].zero_grad()
        cross_entropy(parts["model"](inputs), indices % CLASSES).backward()
        self.moment("after backward")
        if dist.is_initialized() and dist.get_world_size() > 1:
            for parameter in parts["model"].parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        parts["optimizer"].step()
        self.moment("after the optimizer's step")
        parts["scheduler"].step()
        self.moment("after step")

    def moment(self, name: str) -> None:
        """The check ends processes here, too."""
