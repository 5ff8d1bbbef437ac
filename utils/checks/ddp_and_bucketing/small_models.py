"""The models that the checks of this lab train: small, and with everything that is easily forgotten.

All trainable parameters of a model have different sizes, so a number of bytes tells which parameter travelled.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

FEATURES, TARGETS, ROWS = 6, 3, 4  # what goes in, what comes out, rows for each rank


class Everything(nn.Module):
    """A tied weight, frozen parameters, a scalar, buffers of three kinds; float64, so that rounding is tiny."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 7)
        self.frozen = nn.Linear(7, 8, bias=False).requires_grad_(False)
        self.square = nn.Linear(8, 8, bias=False)
        self.scale = nn.Parameter(torch.rand(()) + 0.5)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.square.weight
        self.last = nn.Linear(8, TARGETS)
        self.register_buffer("shift", torch.randn(7))
        self.register_buffer("counter", torch.randint(1, 1000, (2,)))
        self.register_buffer("mask", torch.rand(8), persistent=False)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x) + self.shift)
        x = self.square(self.frozen(x)) * self.mask
        return self.last(torch.tanh(self.again(x) * self.scale))


class Branches(nn.Module):
    """Two branches, computed in an order that a rank may choose; a part in float32; a tied and a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.backwards = False  # which branch comes first
        self.first = nn.Linear(FEATURES, 7)
        self.left = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5))
        self.right = nn.Sequential(
            nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 4), nn.Tanh(), nn.Linear(4, 5, bias=False)
        )
        self.frozen = nn.Linear(5, 13).requires_grad_(False)
        self.square = nn.Linear(13, 13, bias=False)
        self.again = nn.Linear(13, 13)
        self.again.weight = self.square.weight
        self.double()
        self.single = nn.Sequential(nn.Linear(13, 17), nn.Tanh(), nn.Linear(17, 6))
        self.last = nn.Linear(6, TARGETS).double()
        self.scale = nn.Parameter(torch.tensor(1.2))  # float32

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        names = ("right", "left") if self.backwards else ("left", "right")
        both = {name: getattr(self, name)(x) for name in names}
        x = self.frozen(both["left"] + both["right"])
        x = self.again(torch.tanh(self.square(x)))
        return self.last(self.single(x.float()).double()) * self.scale


class Optional(nn.Module):
    """Experts of which a forward takes one, or none; a layer that nobody ever takes; a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 7)
        sizes = ((7, 7), (7, 9, 11, 7), (7, 12, 13, 7))
        self.experts = nn.ModuleList(
            nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths))) for widths in sizes
        )
        self.never = nn.Linear(5, 5)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.last = nn.Linear(7, TARGETS)
        self.expert: int | None = None
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        if self.expert is not None:
            x = x + torch.tanh(self.experts[self.expert](x))
        return self.last(self.frozen(x))


MODELS = {model.__name__: model for model in (Everything, Branches, Optional)}
OPTIMIZERS = {
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


@dataclass(frozen=True)
class Weight:
    """What is known of a parameter.

    Args:
        names: all names that it has: two, if it is tied.
        bytes: its size.
        dtype: "float64".
        trainable: whether it gets a gradient.
    """

    names: tuple[str, ...]
    bytes: int
    dtype: str
    trainable: bool

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return getattr(torch, self.dtype).itemsize

    @property
    def elements(self) -> int:
        return self.bytes // self.itemsize


def weights_of(model: nn.Module) -> list[Weight]:
    """Every parameter of a model once, in the order of ``model.parameters()``."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [
        Weight(tuple(names[id(p)]), p.nbytes, str(p.dtype).removeprefix("torch."), p.requires_grad)
        for p in model.parameters()
    ]


def data(step: int, rank: int, micro: int = 0) -> tuple[Tensor, Tensor]:
    """A rank's inputs ``[4, 6]`` and targets ``[4, 3]`` in a step, the same wherever they are asked for."""
    generator = torch.Generator().manual_seed(10_000 * step + 100 * micro + rank)
    shapes = (ROWS, FEATURES), (ROWS, TARGETS)
    inputs, targets = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return inputs, targets


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return mse_loss(model(inputs), targets)


def gradients_of(model: nn.Module) -> dict[str, Tensor | None]:
    """By name, copies of the gradients of all parameters."""
    return {
        name: None if parameter.grad is None else parameter.grad.detach().clone()
        for name, parameter in model.named_parameters()
    }
