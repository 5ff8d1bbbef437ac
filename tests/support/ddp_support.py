"""What the tests of DDP share: small models, inputs by rank and step, and gradients averaged the plain way."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor, nn

import utils

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the functions here run on ranks

SMALL = 1e-5  # MiB: about ten bytes, so every parameter has a bucket of its own
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


def on_ranks(function: Callable[..., Any], *args: Any, ranks: int = 2) -> list[Any]:
    return utils.launch(function, *args, ranks=ranks, backend="gloo", timeout=240, show_output=False)


class Tied(nn.Module):
    """Tokens: an embedding that is also the head, a norm, a frozen layer, a scalar, a convolution in channels_last."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6, dtype=dtype)
        self.frozen = nn.Linear(6, 6, dtype=dtype).requires_grad_(False)
        self.mix = nn.Conv2d(2, 2, 3, padding=1, dtype=dtype).to(memory_format=torch.channels_last)
        self.scale = nn.Parameter(torch.randn((), dtype=dtype))
        self.norm = nn.LayerNorm(6, dtype=dtype)
        self.head = nn.Linear(6, 11, dtype=dtype)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(torch.tanh(self.frozen(self.table(tokens))))  # [batch, 4, 6]
        x = x + self.mix(x.view(-1, 2, 2, 6)).reshape(x.shape) * self.scale
        return self.head(x).mean(1)


class Steps(nn.Module):
    """Linear layers, of which any may be left out; sizes differ, so that bytes tell which gradient is sent."""

    def __init__(self, layers: int = 4, width: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: Tensor, skip: tuple[int, ...] = ()) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = x if i in skip else torch.tanh(layer(x))
        return x


class Norms(nn.Module):
    """Batch norm and dropout: buffers of two types, and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.2), nn.Linear(9, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Broken(torch.autograd.Function):
    """Its backward pass fails."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ArithmeticError("on purpose")


def inputs(rank: int, step: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * step + rank), dtype=dtype)


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if one.grad is None else one.grad.clone() for one in model.parameters()]


def same(a: list[Tensor | None], b: list[Tensor | None]) -> bool:
    """The same bits, and None in the same places."""
    return len(a) == len(b) and all(
        x is y if x is None or y is None else x.dtype == y.dtype and torch.equal(x, y)
        for x, y in zip(a, b, strict=True)
    )


def close(a: list[Tensor], b: list[Tensor], tolerance: float = 1e-5) -> bool:
    return all(torch.allclose(x, y, rtol=tolerance, atol=tolerance / 10) for x, y in zip(a, b, strict=True))


def averaged(model: nn.Module, *losses: Callable[[nn.Module], Tensor]) -> list[Tensor]:
    """The plain way, written without hooks: add up all losses' gradients on a copy, then average each of them."""
    model = copy.deepcopy(model)
    for loss in losses:
        loss(model).backward()
    for one in model.parameters():
        if one.grad is not None:
            one.grad = one.grad.contiguous()
            dist.all_reduce(one.grad)
            one.grad /= dist.get_world_size()
    return gradients(model)


class Wire:
    """A communicator for one process: all ranks have the same numbers, and what is called is kept.

    Attributes:
        log: ("launch", bytes) and ("wait", bytes), and whatever else a test writes into it.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.log: list[tuple[str, Any]] = []

    def all_reduce(self, tensor: Tensor) -> Any:
        self.log.append(("launch", tensor.nbytes))
        wire = self

        class Handle:
            def wait(self) -> None:  # the sum is there only when one has waited for it
                wire.log.append(("wait", tensor.nbytes))
                tensor.mul_(wire.size)

        return Handle()

    def broadcast(self, tensor: Tensor) -> Any:
        self.log.append(("broadcast", tensor.nbytes))

        class Handle:
            def wait(self) -> None:
                pass

        return Handle()
