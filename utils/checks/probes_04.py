"""What the checks of lab 04 run in a process of its own: memory watched step by step, processes that meet.

Each probe calls the learner's function and returns plain data. What is right and what is not is decided in ``lab_04``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from utils.checks.inside import Outcome
from utils.checks.verdicts import Wrong

# --- 3 to 5: leaks ---------------------------------------------------------------------------------------------

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
    except (Exception, Outcome) as error:
        return type(error.__cause__ if isinstance(error, Outcome) else error).__name__
    return ""


# --- 6: processes ----------------------------------------------------------------------------------------------

THREADS = 3  # of torch in the process that calls: forked workers inherit them
FIRST_MEETING_S, MEETING_S = 8.0, 4.0  # right answers never wait so long


class InStep:
    """The function that learners apply to items. All processes take turns: nobody begins a turn before the others do.

    So items cost every process the same, whatever else the machine does. The process that has the first item is
    the last to finish each turn: results come back out of order.
    """

    def __init__(self, folder: str, items: list[int], workers: int) -> None:
        self.folder, self.caller = folder, os.getpid()
        self.first, self.count, self.workers = items[0], len(items), workers

    def __call__(self, item: int) -> float:
        import threading

        import torch

        pid = os.getpid()
        turn = len(list(Path(self.folder).glob(f"{pid}.*.begun")))
        note = {"pid": pid, "item": item, "thread": threading.get_ident(), "torch threads": torch.get_num_threads()}
        Path(self.folder, f"{pid}.{turn}.{item}.begun").write_text(json.dumps(note))
        if pid != self.caller:
            others = min(self.workers, self.count - turn * self.workers)
            self._wait(f"*.{turn}.*.begun", others, FIRST_MEETING_S if turn == 0 else MEETING_S)
            if list(Path(self.folder).glob(f"{pid}.*.{self.first}.begun")) and others > 1:
                self._wait(f"*.{turn}.*.done", 1, MEETING_S)
                time.sleep(0.1)
        Path(self.folder, f"{pid}.{turn}.{item}.done").touch()
        return self.result(item)

    def result(self, item: int) -> float:
        return item * item / 8

    def _wait(self, pattern: str, count: int, seconds: float) -> None:
        """Until so many notes are there. Who has waited in vain tells the others, and they do not wait any more."""
        folder, end = Path(self.folder), time.monotonic() + seconds
        while len(list(folder.glob(pattern))) < count:
            if (folder / "alone").exists():
                return
            if time.monotonic() > end:
                (folder / "alone").touch()
                return
            time.sleep(0.002)


class Failing:
    """Fails for one item."""

    def __init__(self, item: int) -> None:
        self.item = item

    def __call__(self, item: int) -> int:
        if item == self.item:
            raise ValueError(f"item {item} cannot be computed")
        return item


def processes(run_parallel: Any, items: list[int], workers: int) -> dict[str, Any]:
    """Let the learner's function apply ``InStep`` to items.

    Returns:
        ``results`` and ``right``; ``notes``: one for each call (pid, item, thread, torch threads); ``alone``: whether
        a process waited in vain for others; ``caller``: this process; ``threads``: torch's, here, afterwards;
        ``left``: how many processes are still there.
    """
    import torch

    torch.set_num_threads(THREADS)
    os.environ["OMP_NUM_THREADS"] = str(THREADS)  # what spawned workers begin with
    _helpers_can_be_sent(run_parallel)
    with tempfile.TemporaryDirectory(prefix="items-") as folder:
        function = InStep(folder, items, workers)
        results = run_parallel(function, list(items), workers)
        left = _still_there()
        return {
            "results": results,
            "right": [function.result(item) for item in items],
            "notes": [json.loads(path.read_text()) for path in Path(folder).glob("*.begun")],
            "alone": Path(folder, "alone").exists(),
            "caller": os.getpid(),
            "threads": torch.get_num_threads(),
            "left": left,
        }


def failing_item(run_parallel: Any, seconds: int) -> str:
    """The kind of error that comes out if one of four items fails, "" if none."""

    def too_long(*_: Any) -> None:
        raise Wrong(
            "one item raises an error, and run_parallel waits for ever: a worker that fails must not be waited for",
            measured=f"no end after {seconds} s",
        )

    _helpers_can_be_sent(run_parallel)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        return raised_by(run_parallel, Failing(2), [3, 1, 2, 0], 2)
    finally:
        signal.alarm(0)


def _helpers_can_be_sent(answer: Any) -> None:
    """What stands beside the answer in the notebook is found under its name here too: pickle looks for it there."""
    for name, value in list(getattr(answer.function, "__globals__", {}).items()):
        if isinstance(value, types.FunctionType | type) and value.__name__ == name:
            if (module := value.__module__) not in sys.modules:
                sys.modules[module] = types.ModuleType(module)
            vars(sys.modules[module]).setdefault(name, value)


def _still_there(seconds: float = 3.0) -> int:
    """How many child processes are still at work, after a moment to end. Helpers of Python and of the course aside."""
    import psutil

    from utils.ranks import starters

    starters.close()  # the course's own launcher keeps a process for the next launch
    helpers = {_pid(forkserver._forkserver), _pid(resource_tracker._resource_tracker)}
    end = time.monotonic() + seconds
    while True:
        multiprocessing.active_children()  # asks those that have ended for their exit code
        left = [child for child in psutil.Process().children(recursive=True) if child.pid not in helpers]
        if not (left := [child for child in left if _works(child)]) or time.monotonic() > end:
            return len(left)
        time.sleep(0.02)


def _pid(helper: Any) -> int | None:
    return getattr(helper, "_forkserver_pid", None) or getattr(helper, "_pid", None)


def _works(child: Any) -> bool:
    import psutil

    try:
        return child.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
