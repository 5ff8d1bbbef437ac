"""On a rank, and for the judge: stages of different widths, and marks on what a stage does with its micro-batches."""

from __future__ import annotations

import gc
import math
import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef


class Block(nn.Module):
    """A tied weight, maybe a frozen one, modes that are mixed; every number goes through a tanh."""

    def __init__(self, draw: random.Random, width: int, wider: int) -> None:
        super().__init__()
        inner = draw.randint(3, 9)
        self.open, self.close = nn.Linear(width, inner), nn.Linear(inner, wider)
        self.square, self.again = nn.Linear(inner, inner, bias=False), nn.Linear(inner, inner)
        self.again.weight = self.square.weight
        self.close.bias.requires_grad_(draw.random() < 0.5)
        for module in self.modules():
            module.training = draw.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.close(torch.tanh(self.again(torch.tanh(self.square(torch.tanh(self.open(x)))))))


def _scaled(_: nn.Module, __: object, output: Tensor) -> Tensor:
    """A hook: who calls ``forward`` itself leaves it out."""
    return 1.25 * output


def shapes(case: dict[str, Any]) -> list[tuple[int, ...]]:
    """What goes into each stage for the whole batch, and what comes out of the last one."""
    draw = random.Random(case["seed"])
    rows = (case["samples"], draw.randint(2, 4)) if case["dimensions"] == 3 else (case["samples"],)
    return [(*rows, draw.randint(3, 9)) for _ in range(case["ranks"] + 1)]


def bytes_of(case: dict[str, Any], border: int) -> int:
    """Of one sample that goes into this stage."""
    return math.prod(shapes(case)[border][1:]) * torch.empty((), dtype=getattr(torch, case["type"])).itemsize


def pipeline(case: dict[str, Any]) -> nn.Sequential:
    """All stages, as the parts of one model."""
    draw, kept = random.Random(case["seed"] + 1), torch.get_rng_state()
    torch.manual_seed(case["seed"])
    widths = [shape[-1] for shape in shapes(case)]
    stages = [nn.Sequential(Block(draw, widths[i], widths[i + 1])) for i in range(case["ranks"])]
    torch.set_rng_state(kept)
    for stage in stages:
        stage.register_forward_hook(_scaled)
    return nn.Sequential(*stages).to(getattr(torch, case["type"]))


def data(case: dict[str, Any], step: int) -> tuple[Tensor, Tensor]:
    """The batch, and targets for the loss."""
    first, *_, last = shapes(case)
    generator = torch.Generator().manual_seed(case["seed"] + 7 * step)
    batch, targets = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in (first, last))
    if case["loss"] == "cross_entropy":
        return batch.to(getattr(torch, case["type"])), targets.argmax(-1)
    return batch.to(getattr(torch, case["type"])), targets.to(getattr(torch, case["type"]))


class Marks:
    """What a stage does: "F0" when a micro-batch is through, "B0" when its gradient comes in.

    Attributes:
        passes: in order.
        graphs, inputs: for how many micro-batches at most the stage's own tensors were there at the same time.
    """

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self.begin()

    def begin(self) -> None:
        self.passes: list[str] = []
        self._graphs: list[StorageWeakRef] = []
        self._inputs: list[StorageWeakRef] = []
        self.graphs = self.inputs = 0

    def on(self, stage: nn.Module) -> None:
        stage.register_forward_hook(self._forward)

    def seen(self, what: str) -> None:
        self.passes.append(what)
        self._wire.phase = str(len(self.passes))
        self.graphs = max(self.graphs, sum(not one.expired() for one in self._graphs))
        self.inputs = max(self.inputs, len({one.cdata for one in self._inputs if not one.expired()}))

    def left(self, inputs: bool) -> int:
        """How many graphs are still there, and inputs if these count."""
        gc.collect()
        return sum(not one.expired() for one in (*self._graphs, *(self._inputs if inputs else ())))

    def __deepcopy__(self, memo: Any) -> Marks:
        return self

    def _forward(self, _: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        number = sum(one[0] == "F" for one in self.passes)
        witness = torch.empty(1)
        self._graphs.append(StorageWeakRef(witness.untyped_storage()))
        self._inputs.append(StorageWeakRef(given[0].untyped_storage()))
        marked = _Mark.apply(output, witness, self, number)
        self.seen(f"F{number}")
        return marked


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, witness: Tensor, marks: Marks, number: int) -> Tensor:
        ctx.save_for_backward(witness)  # it is there as long as what else this stage has saved for its backward
        ctx.marks, ctx.number = marks, number
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradient: Any) -> Any:
        ctx.marks.seen(f"B{ctx.number}")
        return gradient[0], None, None, None
