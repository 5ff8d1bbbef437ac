"""Models drawn at random, small, and with everything that is easily forgotten.

A tied weight, frozen parameters, names without a tensor, a scalar, buffers that are saved or not, of floats, large
integers and truth values, modes that are mixed. Branches can be computed in any order or left out, and parameters can
have two types. Sizes, structure and numbers come from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Scale(nn.Module):
    """Multiplies by learned numbers, one of them a scalar, and by a mask that is not saved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width) + 0.5)
        self.factor = nn.Parameter(torch.rand(()) + 0.5)
        self.register_parameter("nothing", None)
        self.register_buffer("none", None)
        self.register_buffer("mask", torch.rand(width) + 0.5, persistent=False)
        self.register_buffer("counter", torch.randint(2**54, 2**55, (2,)))
        self.register_buffer("flag", torch.rand(3) > 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain * self.mask * self.factor


class Branched(nn.Module):
    """A stem, branches that are added up, a tied pair, a frozen layer, a head.

    Args:
        seed: of sizes and structure.
        branches: how many.
        types: "float64", "float32", or "float64 and float32": every second branch in float32.

    Attributes:
        order: the branches that a forward computes, in this order.
        gates: by what the outcome of each branch is multiplied.
    """

    def __init__(self, seed: int, branches: int = 2, types: str = "float64") -> None:
        super().__init__()
        draw = random.Random(seed)
        self.width, width = draw.randint(3, 8), draw.randint(3, 7)
        self.stem = nn.Linear(self.width, width, bias=draw.random() < 0.7)
        self.scale = Scale(width)
        self.branches = nn.ModuleList(_branch(draw, width) for _ in range(branches))
        wide = 2 * width + 1  # so that the bytes of what is tied and of what is frozen differ
        self.frozen = nn.Linear(width, wide, bias=draw.random() < 0.5).requires_grad_(False)
        self.square = nn.Linear(wide, wide, bias=False)
        self.again = nn.Linear(wide, wide)
        self.again.weight = self.square.weight
        self.head = nn.Linear(wide, draw.randint(2, 4))
        self.to(getattr(torch, types.split()[0]))
        for branch in self.branches[1::2] if " and " in types else ():
            branch.float()
        self.order = list(range(branches))
        self.gates = [1.0] * branches
        for module in self.modules():
            module.training = draw.random() < 0.5
        self.again.bias.requires_grad_(seed % 2 == 0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale(torch.tanh(self.stem(x)))
        total = x
        for number in self.order:
            branch = self.branches[number]
            total = total + self.gates[number] * branch(x.to(branch[0].weight.dtype)).to(x.dtype)
        x = self.square(self.frozen(torch.tanh(total)))
        return self.head(torch.tanh(self.again(x)))


def _branch(draw: random.Random, width: int) -> nn.Sequential:
    inner = draw.randint(2, 9)
    layers: list[nn.Module] = [nn.Linear(width, inner, bias=draw.random() < 0.6), nn.Tanh()]
    if draw.random() < 0.4:
        layers += [nn.Linear(inner, inner + 1, bias=False), nn.Tanh()]
        inner += 1
    return nn.Sequential(*layers, nn.Linear(inner, width, bias=draw.random() < 0.6))


def model(seed: int, numbers: int | None = None, branches: int = 2, types: str = "float64") -> Branched:
    """A model whose structure comes from ``seed``, and its numbers from ``numbers`` (else from ``seed`` too)."""
    kept = torch.get_rng_state()
    torch.manual_seed(seed if numbers is None else numbers)
    made = Branched(seed, branches, types)
    torch.set_rng_state(kept)
    return made


def loss(model: Branched, seed: int, rows: int = 3) -> Tensor:
    """The mean loss of some rows, the same wherever it is asked for. It is large: who clips gradients changes them."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, model.width, generator=generator, dtype=torch.float64)
    return 64 * model(inputs.to(model.stem.weight.dtype)).square().mean()


def tangled(loss: Tensor) -> Tensor:
    """The same number at the end of a graph with 2**60 paths, deeper than Python's functions may call each other."""
    for _ in range(60):
        loss = 0.5 * loss + 0.5 * loss
    for _ in range(1500):
        loss = loss.clone()
    return loss


def thrown_away(model: Branched) -> None:
    """Compute a branch that the loss does not need."""
    for branch in [one for number, one in enumerate(model.branches) if number not in model.order][:1]:
        branch(torch.ones_like(branch[0].weight[0]))


def trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every trainable parameter once, with its first name."""
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)
