"""What the exercises share: parameters and gradients, shards with their padding, and what a rank hands in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def parameters(case: dict[str, Any], ranks: int, seed: int) -> list[nn.Parameter]:
    """Some, or one, whose length together can be divided by ``ranks``, or cannot ("padding")."""
    torch.manual_seed(seed)
    shapes: list[tuple[int, ...]] = [(3, 4), (), (7,), (seed + 1, 2)] if case["parameters"] == "several" else []
    last = ranks - sum(map(math.prod, shapes)) % ranks + (case["padding"] == "some")
    return [nn.Parameter(torch.randn(shape, dtype=getattr(torch, case["type"]))) for shape in [*shapes, (last,)]]


def draw_gradients(parameters: Sequence[nn.Parameter], seed: int) -> None:
    """Give each a gradient; that of a matrix does not lie in one piece."""
    torch.manual_seed(seed)
    for one in parameters:
        gradient = torch.randn(one.shape[::-1], dtype=torch.float64).to(one.dtype)
        one.grad = gradient.t()  # (a vector and a single number are as they were)


def joined(tensors: Sequence[torch.Tensor], ranks: int) -> torch.Tensor:
    """All of them in one flat tensor, with zeros at its end so that it can be cut into equal shards."""
    flat = torch.cat([one.detach().flatten() for one in tensors])
    return torch.cat([flat, flat.new_zeros(-len(flat) % ranks)])


def handed_in(wire: Any) -> str:
    """What a rank has called, with its bytes."""
    return " and ".join(sorted(f"{call['name']} of {call['bytes']} bytes" for call in wire.calls)) or "nothing"
