"""What the checks of this lab run in a process of its own: training loops, watched step by step (processes has more).

Each probe calls the learner's function and returns plain data. The exercises decide what is right.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

from utils.checks.inside import Outcome
from utils.checks.verdicts import Wrong

ROWS, WIDTH, HIDDEN_WIDTH, CLASSES = 32, 16, 256, 4
BROKEN = (1, 4, 5, 9, 12)  # batches with targets that are no numbers


class Watch:
    """Counts what is alive, once a step."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.tensors: list[int] = []
        self.collections = 0

    def look(self, *_: Any) -> None:
        import torch

        self.bytes.append(torch.simgpu.memory_allocated(0))
        self.tensors.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))

    @contextlib.contextmanager
    def without_collector(self) -> Iterator[None]:
        """No automatic collection inside; those that are asked for are counted."""

        def count(phase: str, _: Any) -> None:
            self.collections += phase == "start"

        gc.collect()
        gc.disable()
        gc.callbacks.append(count)
        try:
            yield
        finally:
            gc.callbacks.remove(count)
            gc.enable()


def leaks(train: Any, kind: str, steps: int) -> dict[str, Any]:
    """Run a training loop of ``kind`` "watch", "log" or "errors" on a new simulated GPU, and look at each step.

    Returns:
        ``result``: what the loop returned; ``parameters``, ``gradients``: afterwards; ``bytes``, ``tensors``: alive
        after each step of the optimizer; ``hooks``: left on the model; ``collections``: calls of gc.collect.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    from utils import simgpu

    simgpu.cluster(gpus_per_node=1)
    torch.manual_seed(4)
    with simgpu.device(0):
        model = nn.Sequential(nn.Linear(WIDTH, HIDDEN_WIDTH), nn.Tanh(), nn.Linear(HIDDEN_WIDTH, CLASSES))
        batches = [(torch.randn(ROWS, WIDTH), torch.randn(ROWS, CLASSES)) for _ in range(steps + 1)]
    watched = batches.pop()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    watch = Watch()

    def train_step(x: torch.Tensor, y: torch.Tensor) -> None:
        watch.look()
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        if not loss.isfinite():
            raise ValueError(f"the loss is {loss.item()}")
        loss.backward()
        optimizer.step()

    if kind == "errors":
        for number in BROKEN:
            batches[number][1][0, 0] = torch.nan
        arguments: tuple[Any, ...] = (train_step, batches)
    else:
        optimizer.register_step_post_hook(watch.look)
        arguments = (model, optimizer, batches, *([watched] if kind == "watch" else []))
    with watch.without_collector():
        result = train(*arguments)
    return {
        "result": result,
        "parameters": [parameter.detach().cpu() for parameter in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.detach().cpu() for p in model.parameters()],
        "hooks": sum(len(layer._forward_hooks) + len(layer._forward_pre_hooks) for layer in model.modules()),
        **{name: getattr(watch, name) for name in ("bytes", "tensors", "collections")},
    }


def leaks_twice(train: Any, right: Any, kind: str, steps: tuple[int, ...]) -> list[Any]:
    """For each number of steps what the learner's loop does and what the right one does, after one to warm up."""
    leaks(right, kind, max(BROKEN) + 1)
    return [(leaks(train, kind, n), leaks(right, kind, n)) for n in steps]


def right_watch(model: Any, optimizer: Any, batches: Any, watched: Any) -> float:
    """What the loops compute, without a leak: this one the mean loss of one batch after each step."""
    from torch.nn.functional import mse_loss

    total = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        total += mse_loss(model(watched[0]), watched[1]).item()
    return total / len(batches)


def right_log(model: Any, optimizer: Any, batches: Any) -> list[float]:
    """The mean of the hidden layer's outputs in each step."""
    from torch.nn.functional import mse_loss

    means = []
    for x, y in batches:
        optimizer.zero_grad()
        hidden = model[1](model[0](x))
        means.append(hidden.mean().item())
        mse_loss(model[2](hidden), y).backward()
        optimizer.step()
    return means


def right_errors(train_step: Any, batches: Any) -> list[tuple[int, str]]:
    """The numbers of broken batches, and what was wrong with them."""
    errors = []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except ValueError as error:
            errors.append((number, str(error)))
    return errors


def other_error(train_through_errors: Any) -> str:
    """What becomes of an error that is no ValueError: "" if it is swallowed, else its kind."""

    def train_step(x: int, y: int) -> None:
        raise MemoryError("the GPU is full")

    return raised_by(train_through_errors, train_step, [(1, 2)])


def raised_by(function: Any, *arguments: Any) -> str:
    """The kind of error that comes out of a learner's function, "" if none."""
    try:
        function(*arguments)
    except Wrong:
        raise
    except (Exception, Outcome) as error:
        return type(error.__cause__ if isinstance(error, Outcome) else error).__name__
    return ""
