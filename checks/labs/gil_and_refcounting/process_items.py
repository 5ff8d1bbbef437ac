"""Functions for items that note who computes them, and the processes that a learner's code has started."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from checks.engine.inside import Outcome

MEETING_S, NEXT_TURN_S = 30.0, 10.0  # right answers wait until a process has begun, and then hardly ever
WAITS = "run_parallel waits for ever. A worker that has failed, or that waits to get rid of its results, never ends"


class InStep:
    """All processes take turns: nobody begins a turn before the others do. So items cost every process the same.

    The process that has the first item is the last to finish: results come back out of order.
    """

    def __init__(self, folder: str, items: list[int], workers: int) -> None:
        self.folder, self.caller, self.first, self.count, self.workers = (
            Path(folder), os.getpid(), items[0], len(items), workers)  # fmt: skip

    def __call__(self, item: int) -> float:
        import torch

        me = os.getpid()
        turn = len(list(self.folder.glob(f"*.{me}.*")))
        note = {"pid": me, "item": item, "thread": threading.get_ident(), "torch threads": torch.get_num_threads()}
        (self.folder / f"{turn}.{me}.{item}").write_text(json.dumps(note))
        end = time.monotonic() + (NEXT_TURN_S if turn else MEETING_S)
        others = min(self.workers, self.count - turn * self.workers)
        alone = self.folder / "alone"
        while me != self.caller and len(list(self.folder.glob(f"{turn}.*"))) < others and not alone.exists():
            if time.monotonic() > end:
                alone.touch()
            time.sleep(0.003)
        time.sleep(0.1 * (item == self.first))
        return item * item / 8

    def notes(self) -> list[dict[str, Any]]:
        """One for each call."""
        return [json.loads(path.read_text()) for path in self.folder.glob("*.*")]


class Failing:
    """Gives the item back, of any kind; one of them fails."""

    def __init__(self, fails: Any = None) -> None:
        self.fails = fails

    def __call__(self, item: Any) -> Any:
        if self.fails is not None and item == self.fails:
            raise OfManyKinds(f"item {item} cannot be computed")
        return item


class OfManyKinds(KeyError, IndexError, ZeroDivisionError, AssertionError, NotImplementedError, TypeError, OSError):
    """Whoever swallows errors of one of these kinds swallows it."""


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """In the block, code that waits for ever is ended with a sentence, with all processes that it has started."""

    def too_long(*_: Any) -> None:
        end_children()  # for whom a pool's exit would wait
        raise Outcome("wrong", WAITS)

    kept = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)


def helpers_can_be_sent(function: Callable[..., Any]) -> None:
    """What stands beside the answer in the notebook is found here too, in ``__main__``: pickle looks for it there."""
    for name, value in list(getattr(function, "__globals__", {}).items()):
        if isinstance(value, types.FunctionType | type) and value.__name__ == name:
            if value.__module__ not in sys.modules:
                value.__module__ = "__main__"
            if value.__module__ == "__main__":
                vars(sys.modules["__main__"]).setdefault(name, value)


def end_children() -> None:
    """End what a learner's code has started."""
    for child in _children():
        with contextlib.suppress(Exception):
            child.kill()


def still_there(seconds: float = 3.0) -> int:
    """How many child processes are still there, after a moment to end. Helpers of Python and of the course aside."""
    end = time.monotonic() + seconds
    while True:
        multiprocessing.active_children()  # asks those that have ended for their exit code
        if not (left := _children()) or time.monotonic() > end:
            return len(left)
        time.sleep(0.02)


def _children() -> list[Any]:
    """But for the helpers that Python keeps, and the one that the course keeps for its next launch."""
    import psutil

    from utils.ranks import starters

    kept = forkserver._forkserver, resource_tracker._resource_tracker, starters._zygote
    helpers = {getattr(one, name, None) for one in kept for name in ("_forkserver_pid", "_pid", "pid")}
    return [child for child in psutil.Process().children() if child.pid not in helpers]
