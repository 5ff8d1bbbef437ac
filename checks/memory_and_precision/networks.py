"""In the rank: small networks with what is easily counted wrong: ties, frozen layers, buffers, types."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (torch.relu, torch.tanh, functional.gelu, torch.sigmoid)
LOSSES = ("mean square", "root mean square", "cross-entropy")


class Network(nn.Module):
    """Layers with a residual connection, a tied pair, a frozen layer, a gate (both halves of one tensor are kept), a
    choice (truth values are kept), and a buffer that is multiplied with.

    Args:
        seed: of sizes, structure and numbers.
        dtype: of parameters and numbers.
    """

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.inputs, width, self.classes = draw.randint(20, 90), draw.randint(260, 400), draw.randint(3, 20)
        self.first = nn.Linear(self.inputs, width, bias=draw.random() < 0.7)
        self.norm = nn.LayerNorm(width)
        self.square, self.again = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.again.weight = self.square.weight
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.gate = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, self.classes)
        self.register_buffer("mask", torch.rand(width) + 0.5)
        self.shapes = draw.choices(ACTIVATIONS, k=3)
        self.to(dtype)
        self.head.float()  # so two types, but in a network of float32
        self.norm.eval()  # in which it computes the same: who sets modes for all of a network changes this one

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.shapes
        x = a(self.first(x))
        x = torch.where(x > 0.1, x, -x)  # which keeps truth values
        x = x + b(self.square(self.norm(x))) * self.mask
        gate, x = self.gate(x).chunk(2, dim=-1)
        return self.head(c(self.again(self.frozen(functional.silu(gate) * x))).to(self.head.weight.dtype))


def network(seed: int, dtype: torch.dtype) -> Network:
    """The same numbers wherever it is asked for."""
    kept = torch.get_rng_state()
    torch.manual_seed(seed)
    made = Network(seed, dtype)
    torch.set_rng_state(kept)
    return made


def batch(model: Network, seed: int, rows: int, dtype: torch.dtype) -> list[Tensor]:
    """Inputs and classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, model.inputs, generator=generator, dtype=dtype)
    return [x, torch.randint(model.classes, (rows,), generator=generator)]


def loss(model: Network, kind: str, x: Tensor, classes: Tensor) -> Tensor:
    """A mean over the batch."""
    out = model(x)
    if kind == "cross-entropy":
        return functional.cross_entropy(out, classes)
    found = out.square().mean()
    return found.sqrt() if kind == "root mean square" else found
