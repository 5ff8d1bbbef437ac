"""In the rank: pieces of models, stages of a pipeline, and GPUs on which the formula for the bubble is exact."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import torch
from torch import Tensor, nn

import simgpu
from checks.contracts import Facts, gpus
from simgpu.hardware import TOY
from simgpu.work import Port
from utils.hardware.links import Link

__all__ = ["WIDTH", "alone", "bytes_of_gradients", "gpus", "ideal_cluster", "pieces", "pipeline"]
NO_TIME_S = 1e-12  # for a launch and for a message: next to nothing beside the 0.1 ms of a matrix product here
WIDTH = 32


class Piece(nn.Module):
    """A layer with all that a cost may be confused by, and that gets lost on the way to a GPU."""

    def __init__(self, draw: random.Random, width: int, wider: int, dtype: torch.dtype) -> None:
        super().__init__()
        kind = draw.choice(("linear", "linear", "two layers", "nothing"))
        self.layers = (
            nn.Sequential(nn.Tanh()) if width == wider and kind == "nothing" else self._layers(draw, width, wider)
        )
        self.to(dtype)
        if draw.random() < 0.4:  # buffers are no parameters, however large
            self.register_buffer("buffer", torch.rand(draw.randint(1, 3000)), persistent=draw.random() < 0.5)
        if draw.random() < 0.3:
            self.requires_grad_(False)
        for module in self.modules():
            module.training = draw.random() < 0.5
        if draw.random() < 0.3:
            self.register_forward_hook(_scaled)

    def _layers(self, draw: random.Random, width: int, wider: int) -> nn.Sequential:
        if draw.random() < 0.7:
            return nn.Sequential(nn.Linear(width, wider, bias=draw.random() < 0.6))
        inner = draw.randint(2, 40)
        return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, wider))

    def forward(self, x: Tensor) -> Tensor:
        own = next(self.parameters(), x)
        return self.layers(x.to(own.dtype))


def _scaled(_: nn.Module, __: object, output: Tensor) -> Tensor:
    """A hook: who calls ``forward`` itself leaves it out."""
    return 1.25 * output


def pieces(seed: int, count: int, types: str) -> tuple[list[nn.Module], Tensor]:
    """Modules on the CPU that run one after the other, and an input for the first."""
    draw, kept = random.Random(seed), torch.get_rng_state()
    torch.manual_seed(seed)
    kinds = [getattr(torch, name) for name in types.split(" and ")]
    widths = [draw.randint(3, 60)]
    for _ in range(count):
        widths.append(widths[-1] if draw.random() < 0.4 else draw.randint(3, 60))
    half = draw.randint(1, count - 1) if count > 1 else 1
    made: list[nn.Module] = [
        Piece(draw, widths[i], widths[i + 1], kinds[0] if i < half else kinds[-1]) for i in range(count)
    ]
    x = torch.randn(3, widths[0], dtype=kinds[0])
    torch.set_rng_state(kept)
    return made, x


# --- Pipelines


class Layer(nn.Module):
    """Its backward takes twice as long as its forward, also where the input needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(WIDTH) / 8)  # so that the input needs a gradient, in each layer
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x + self.shift))


class Odd(nn.Module):
    """Layers of another width, a tied weight, a frozen one."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        inner = draw.randint(5, 40)
        self.open, self.close = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)
        self.square = nn.Linear(inner, inner, bias=False)
        self.again = nn.Linear(inner, inner)
        self.again.weight = self.square.weight
        self.close.bias.requires_grad_(draw.random() < 0.5)
        self.register_buffer("scale", torch.rand(inner) + 0.5)
        for module in self.modules():
            module.training = draw.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        x = self.square(torch.tanh(self.open(x))) * self.scale
        return self.close(torch.tanh(self.again(torch.tanh(x))))


def pipeline(seed: int, p: int, equal: bool, dtype: torch.dtype) -> nn.Sequential:
    """Stages on the CPU, as the parts of one model."""
    draw, kept = random.Random(seed), torch.get_rng_state()
    torch.manual_seed(seed)
    if equal:
        made = [nn.Sequential(*(Layer() for _ in range(4))) for _ in range(p)]
    else:
        made = [
            nn.Sequential(*(draw.choice((Layer, lambda: Odd(draw)))() for _ in range(draw.randint(1, 3))))
            for _ in range(p)
        ]
        for stage in made:
            stage.register_forward_hook(_scaled)
    torch.set_rng_state(kept)
    return nn.Sequential(*made).to(dtype)


def bytes_of_gradients(stage: nn.Module) -> int:
    """The bytes of a stage's gradients on its GPU."""
    return sum(gpus.rounded(q.nbytes) for q in stage.parameters() if q.grad is not None)


def alone(stage: nn.Module, i: int, rows: int) -> Facts:
    """What one micro-batch costs one stage: products forward and backward, FLOPs of a row, bytes that are held."""
    x = torch.zeros(rows, WIDTH, device=f"simgpu:{i}").requires_grad_(i > 0)
    before = torch.simgpu.memory_allocated(i)
    with gpus.seen() as ahead:
        y = stage(x)
    held = torch.simgpu.memory_allocated(i) - before
    with gpus.seen() as back:
        torch.autograd.grad(y.sum(), [q for q in stage.parameters() if q.requires_grad] + ([x] if i else []))
    return {
        "products": [sum(bool(event[5]) for event in one["events"]) for one in (ahead, back)],
        "flops": [ahead["flops"]["forward"][i] / rows, back["flops"]["backward"][i] / rows],
        "held": held,
    }


def ideal_cluster(count: int) -> Any:
    """A simulated cluster in which only matrix products take time, and copies never wait for a link.

    What is idle then is idle because of the order of the work.
    """
    link = Link("ideal link", NO_TIME_S, 1e18, 2026, "invented: it takes next to no time", "invented")
    rates = dict.fromkeys(TOY.flops, 10e9)
    gpu = dataclasses.replace(TOY, name="ideal", flops=rates, memory_bytes_per_s=1e18, nvlink=link, host=link)
    cluster = simgpu.cluster(gpus_per_node=count, gpu=gpu, launch_s=NO_TIME_S)
    cluster.path = lambda *_: (link, (Port("a link of its own"),))  # type: ignore[method-assign]
    return cluster
