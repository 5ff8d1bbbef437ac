"""In a rank: the models that are replicated, on simulated GPUs and once more on the host, for comparison."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from checks.contracts import gpus, scenery
from checks.contracts.snapshot import raw
from checks.verdicts import Wrong

MEET_S = 0.5  # for so long the first thread waits inside a module for a second one
_here, _inside = threading.Condition(), []
_arrived = [0]


class Net(nn.Module):
    """Layers of all kinds, on request with statistics behind them. It notices two threads that use it together."""

    def __init__(self, seed: int, types: str, statistics: bool) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.body = scenery.model(seed, branches=draw.randint(2, 3), types=types)
        self.width = self.body.width
        outputs = self.body.head.out_features
        self.norm = nn.BatchNorm1d(outputs, dtype=self.body.head.weight.dtype) if statistics else nn.Identity()
        self.norm.train(draw.random() < 0.8)
        self.training = draw.random() < 0.5  # its layers have modes of their own

    def forward(self, x: Tensor) -> Tensor:
        with _alone(self):
            return self.norm(self.body(x))


class _alone:
    """Around a forward: a module is used by one thread at a time."""

    def __init__(self, module: nn.Module) -> None:
        self.module = id(module)

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            return
        with _here:
            _inside.append(self.module)
            _arrived[0] += 1
            _here.notify_all()
            _here.wait_for(lambda: _arrived[0] > 1, timeout=MEET_S)
            if _inside.count(self.module) > 1:
                _inside.remove(self.module)
                raise Wrong(
                    "threads share one module: functional_call puts a replica's tensors into the module while it "
                    "runs, so another thread finds those of the wrong GPU. Use a loop, or a module for each thread."
                )

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            with _here:
                _inside.remove(self.module)


def pair(seed: int, device: torch.device, types: str, statistics: bool) -> tuple[Net, Net]:
    """A model on a GPU, and its twin on the host, without anybody's hooks."""
    kept = torch.get_rng_state()
    model = Net(seed, types, statistics)
    torch.set_rng_state(kept)
    return gpus.put(model, device), scenery.twin(model_like(model, seed, types, statistics))


def model_like(model: nn.Module, seed: int, types: str, statistics: bool) -> Net:
    """On the host, a model of this seed with the numbers that another one has."""
    kept = torch.get_rng_state()
    made = Net(seed, types, statistics)
    torch.set_rng_state(kept)
    copy_state(model, made)
    return made


def copy_state(source: nn.Module, target: nn.Module) -> None:
    """All numbers of one model into another one of the same build; and no gradients."""
    with torch.no_grad():
        for mine, theirs in zip(state(target), state(source), strict=True):
            raw(mine).copy_(raw(theirs))
    target.zero_grad()


def state(model: nn.Module) -> Iterator[Tensor]:
    """Each parameter and each buffer once."""
    yield from model.parameters()
    yield from model.buffers()


def rows(count: int, model: Net, seed: int) -> Tensor:
    """A batch on the host."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, model.width, generator=generator, dtype=torch.float64)
    return numbers.to(model.body.stem.weight.dtype)


def sizes(model: nn.Module, batch: Tensor) -> dict[str, int]:
    """Bytes of what may move."""
    return {
        "state": sum(tensor.nbytes for tensor in state(model)),
        "parameters": sum(p.nbytes for p in model.parameters()),
        "trained": sum(p.nbytes for p in model.parameters() if p.requires_grad),
        "input": batch.nbytes // len(batch),
        "learns": batch.requires_grad,
    }
