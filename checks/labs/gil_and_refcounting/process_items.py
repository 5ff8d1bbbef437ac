"""Functions for items, one of which notes who computes them, and the processes that a learner's code has started."""

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
from pathlib import Path
from typing import Any

import torch

from checks.engine.inside import Outcome

MEETING_S = 30.0  # right answers wait until a process has begun, and then hardly ever
WAITS = "run_parallel waits for ever. A worker that has failed, or that waits to get rid of its results, never ends"


class InStep:
    """All processes take turns: nobody begins a turn before the others do, so items cost all the same. Who has
    the first item is the last to finish: results come back out of order. Who waits in vain makes a file, ``alone``."""

    def __init__(self, folder: str, items: list[int], workers: int) -> None:
        self.folder, self.alone, self.caller = Path(folder), Path(folder, "alone"), os.getpid()
        self.first, self.count, self.workers = items[0], len(items), workers

    def __call__(self, item: int) -> float:
        me = os.getpid()
        turn = len([*self.folder.glob(f"*.{me}.*")])
        note = {"pid": me, "item": item, "thread": threading.get_ident(), "torch threads": torch.get_num_threads()}
        (self.folder / f"{turn}.{me}.{item}").write_text(json.dumps(note))
        end, others = time.monotonic() + MEETING_S, min(self.workers, self.count - turn * self.workers)
        while me != self.caller and len([*self.folder.glob(f"{turn}.*")]) < others and not self.alone.exists():
            if time.monotonic() > end:
                self.alone.touch()
            time.sleep(0.003)
        time.sleep(0.1 * (item == self.first))
        return item * item / 8


def itself(item: Any) -> Any:
    """The item, of any kind, but for one that fails."""
    if item == 13:
        raise LookupError(f"item {item} cannot be computed")
    return item


@contextlib.contextmanager
def ended_after(seconds: int) -> Iterator[None]:
    """In the block, code that waits for ever is ended with a sentence, with all processes that it has started."""

    def too_long(*_: Any) -> None:
        end_children()  # for whom a pool's exit would wait
        raise Outcome("wrong", WAITS)

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def helpers_can_be_sent(function: Callable[..., Any]) -> None:
    """What stands beside the answer in the notebook is found here too, in ``__main__``: pickle looks for it there."""
    main = vars(sys.modules["__main__"])
    for value in [*getattr(function, "__globals__", {}).values()]:
        if isinstance(value, types.FunctionType | type) and value.__module__ in ("__main__", function.__module__):
            value.__module__ = "__main__"
            main[value.__name__] = value


def end_children(seconds: float = 0.0) -> int:
    """How many processes of a learner's code are still there, after a moment to end by themselves. They are ended."""
    end = time.monotonic() + seconds
    while (left := multiprocessing.active_children()) and time.monotonic() < end:
        time.sleep(0.02)
    for child in left:
        child.kill()
    return len(left)
