"""A small model with what is easily forgotten, its rows, and what a call must leave as it was."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from checks.engine import gpus, refuse
from checks.labs.data_parallel_internals.simulated import values

WIDTH, CLASSES = 4, 3
FLOPS = 200  # of a row, forward


class Net(nn.Module):
    """A layer in a layer, a tied weight, a frozen layer, a buffer that is not saved; statistics, if asked for."""

    def __init__(self, dtype: torch.dtype, statistics: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.inner = nn.Sequential(nn.Tanh(), nn.Sequential(nn.Linear(WIDTH, 7)))
        self.frozen = nn.Linear(7, WIDTH).requires_grad_(False)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.norm = nn.BatchNorm1d(CLASSES) if statistics else nn.Identity()
        self.register_buffer("scale", torch.ones(WIDTH), persistent=False)
        generator = torch.Generator().manual_seed(1)
        for parameter in self.parameters():
            parameter.data = torch.rand(parameter.shape, generator=generator) - 0.4
        self.again.weight = self.first.weight
        self.inner.eval()
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.1)  # another thread that shares this module puts its tensors into it meanwhile
        where, right = gpus.place(self.first.weight), gpus.place(x)
        refuse(where != right, "rows and weights of a replica are on two GPUs (do threads share a module? While it "
               "runs, functional_call puts a replica's tensors there)", measured=f"{right} and {where}")  # fmt: skip
        return self.norm(self.head(torch.tanh(self.again(self.frozen(self.inner(self.first(x * self.scale)))))))


def tensors(model: nn.Module) -> dict[str, Any]:
    """Each parameter and each buffer once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def rows(count: int, of: str, seed: int = 2) -> Tensor:
    """On the host."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, WIDTH, generator=generator, dtype=torch.float64).to(getattr(torch, of))


@contextlib.contextmanager
def unchanged(model: nn.Module, buffers: bool = True) -> Iterator[None]:
    """A call leaves the model where it is, in its mode, with its numbers (not buffers, if it may train), no gradient.

    Raises:
        Wrong: naming what is not as before.
    """

    def state() -> dict[str, Any]:
        found: dict[str, Any] = {"the mode of a layer: train() or eval()": [one.training for one in model.modules()]}
        for name, one in tensors(model).items():
            found[f"where the model's `{name}` is: .to() of a module moves the module itself"] = gpus.place(one)
            found[f"whether the model's `{name}` is frozen"] = one.requires_grad
            found[f"the gradient of the model's `{name}`: leave backward to the caller"] = one.grad is not None
            if buffers or isinstance(one, nn.Parameter):
                found[f"the numbers in the model's `{name}`"] = values(one).flatten().tolist()
        return found | {"whether gradients are recorded": torch.is_grad_enabled()}

    before = state()
    yield
    changed = next((name for name, value in state().items() if value != before[name]), "")
    refuse(changed, f"your function changes {changed}")
