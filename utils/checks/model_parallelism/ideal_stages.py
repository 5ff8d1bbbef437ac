"""Stages of equal cost, and how large a step with them is."""

from __future__ import annotations

import dataclasses
from typing import Any

GPIPE, ONE_F_ONE_B = "GPipe", "1F1B"
WIDTH, LAYERS = 32, 4


def ideal_stages(p: int) -> list[Any]:
    """Stages of equal cost: every layer's backward takes twice as long as its forward, also in the first stage."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.randn(WIDTH) / 8)  # so that the input needs a gradient, in each layer
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return torch.tanh(self.linear(x + self.shift))

    return [nn.Sequential(*(Layer() for _ in range(LAYERS))) for _ in range(p)]


@dataclasses.dataclass(frozen=True)
class Case:
    """One step: GPUs, micro-batches, samples in the batch, and whether the targets are classes."""

    p: int
    m: int
    samples: int
    classes: bool = False

    @property
    def even(self) -> bool:
        """Are all micro-batches of the same size, so that the formula for the bubble holds?"""
        return self.samples % self.m == 0

    @property
    def bubble(self) -> float:
        return (self.p - 1) / (self.m + self.p - 1)

    @property
    def text(self) -> str:
        return f"{self.p} GPUs, {self.m} micro-batches, {self.samples} samples"
