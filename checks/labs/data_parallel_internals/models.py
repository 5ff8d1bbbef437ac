"""GPUs for a case, a small model with what is easily forgotten, and its rows."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch import Tensor, nn

import simgpu
from checks.engine import gpus, refuse

WIDTH, CLASSES, FLOPS = 4, 3, 200  # FLOPs of a row, forward


def cluster(devices: list[int], **options: Any) -> list[torch.device]:
    """These GPUs, of a machine that has one more."""
    gpus.begin()
    simgpu.cluster(gpus_per_node=max(devices) + 2, **options)
    return [simgpu.device(number) for number in devices]


def values(tensor: Tensor) -> Tensor:
    """Its numbers, on the host."""
    return gpus.raw(tensor).detach().clone()


class Net(nn.Module):
    """A layer in a layer, a tied weight, a frozen layer, a buffer that is not saved; statistics, if asked for."""

    def __init__(self, statistics: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.inner = nn.Sequential(nn.Tanh(), nn.Sequential(nn.Linear(WIDTH, 7)))
        self.frozen = nn.Linear(7, WIDTH).requires_grad_(False)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.norm = nn.BatchNorm1d(CLASSES) if statistics else nn.Identity()
        self.register_buffer("scale", torch.ones(WIDTH), persistent=False)
        self.again.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.1)  # another thread that shares this module puts its tensors into it meanwhile
        where, right = gpus.place(self.first.weight), gpus.place(x)
        fault = "rows and weights of a replica are on two GPUs (do threads share a module? While it runs, "
        fault += "functional_call puts a replica's tensors there)"
        refuse(where != right, fault, measured=f"{right} and {where}")
        return self.norm(self.head(torch.tanh(self.again(self.frozen(self.inner(self.first(x * self.scale)))))))


def refuse_moved(model: nn.Module, device: Any) -> None:
    """The model is still on its GPU."""
    places = {gpus.place(tensor) for tensor in tensors(model).values()} - {f"GPU {device.index}"}
    refuse(places, "your function moves the model: .to() of a module moves the module itself", measured=[*places])


def tensors(model: nn.Module) -> dict[str, Any]:
    """Each parameter and each buffer once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def rows(count: int, of: str, seed: int = 2) -> Tensor:
    """On the host."""
    torch.manual_seed(seed)
    return torch.randn(count, WIDTH, dtype=torch.float64).to(getattr(torch, of))
