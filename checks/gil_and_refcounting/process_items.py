"""In the rank: functions for items that note who computes them and when, and processes that wait in vain.

They count instead of measuring time: which process gets which item, and whether all processes work at once.
"""

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
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from checks.inside import Outcome

THREADS = 3  # of torch in the process that calls: forked workers inherit them
MEETING_S = 60.0  # right answers never wait so long
STILL_S = 2.0  # nobody has done anything for so long: nobody will
IDLE_S = 0.3  # of a core: what those who wait, and the course that watches them, need in that time


class InStep:
    """The function that learners apply to items. All processes take turns: nobody begins a turn before the others do.

    So items cost every process the same, whatever else the machine does. The process that has the first item is
    the last to finish each turn: results come back out of order.
    """

    def __init__(self, folder: str, items: list[int], workers: int) -> None:
        self.folder, self.caller = folder, os.getpid()
        self.first, self.count, self.workers = items[0], len(items), workers

    def __call__(self, item: int) -> float:
        import torch

        pid = os.getpid()
        turn = len(list(Path(self.folder).glob(f"{pid}.*.begun")))
        note = {"pid": pid, "item": item, "thread": threading.get_ident(), "torch threads": torch.get_num_threads()}
        Path(self.folder, f"{pid}.{turn}.{item}.begun").write_text(json.dumps(note))
        if pid != self.caller:
            others = min(self.workers, self.count - turn * self.workers)
            self._wait(f"*.{turn}.*.begun", others)
            if list(Path(self.folder).glob(f"{pid}.*.{self.first}.begun")) and others > 1:
                self._wait(f"*.{turn}.*.done", 1)
                time.sleep(0.1)
        Path(self.folder, f"{pid}.{turn}.{item}.done").touch()
        return self.result(item)

    def result(self, item: int) -> float:
        return item * item / 8

    def seen(self) -> dict[str, Any]:
        """One note for each call, and whether a process waited in vain for others."""
        notes = [json.loads(path.read_text()) for path in Path(self.folder).glob("*.begun")]
        return {"notes": notes, "alone": Path(self.folder, "alone").exists()}

    def _wait(self, pattern: str, count: int) -> None:
        """Until so many notes are there. Who has waited in vain tells the others, and they do not wait any more."""
        folder, end, family = Path(self.folder), time.monotonic() + MEETING_S, Family(self.caller)
        waits = folder / f"{os.getpid()}.waits"
        waits.touch()
        while len(list(folder.glob(pattern))) < count and not (folder / "alone").exists():
            if time.monotonic() > end or family.is_still(but={int(path.stem) for path in folder.glob("*.waits")}):
                (folder / "alone").touch()
            time.sleep(0.002)
        waits.unlink()


class Family:
    """A process and all that it has started. Asked again and again whether they do nothing any more."""

    def __init__(self, head: int) -> None:
        self.head, self.asked, self.since, self.used = head, 0.0, time.monotonic(), 0.0

    def is_still(self, but: set[int]) -> bool:
        """Whether all of them have slept for ``STILL_S``, apart from these, which wait for the others."""
        import psutil

        now = time.monotonic()
        if now < self.asked + 0.25:
            return False
        self.asked, used, asleep = now, 0.0, True
        try:
            head = psutil.Process(self.head)
            for process in [head, *head.children(recursive=True)]:
                if process.pid not in but:
                    used += sum(process.cpu_times()[:2])
                    used -= time.thread_time() if process.pid == os.getpid() else 0.0  # looking is no work
                    asleep &= process.status() in (psutil.STATUS_SLEEPING, psutil.STATUS_IDLE, psutil.STATUS_ZOMBIE)
        except psutil.Error:
            asleep = False  # one has just ended
        if not asleep or abs(used - self.used) > IDLE_S:
            self.since, self.used = now, used
        return now - self.since > STILL_S


class Large:
    """Gives a result that fills every pipe, with the process that made it. Items may be anything."""

    def __call__(self, item: Any) -> list[Any]:
        return [os.getpid(), repr(item), "x" * 150_000]


class AsItIs:
    """Gives the item back, of any kind."""

    def __call__(self, item: Any) -> Any:
        return item


class OfManyKinds(KeyError, IndexError, ZeroDivisionError, AssertionError, NotImplementedError, TypeError, OSError):
    """Whoever swallows errors of one of these kinds swallows it."""


class Failing:
    """Fails for one item."""

    def __init__(self, item: int, error: type[Exception]) -> None:
        self.item, self.error = item, error

    def __call__(self, item: int) -> int:
        if item == self.item:
            raise self.error(f"item {item} cannot be computed")
        return item


@contextlib.contextmanager
def ended_when_still(seconds: float, looks: bool = True) -> Iterator[None]:
    """In the ``with`` block a learner's code that waits for ever, with all its processes, is ended with a sentence.

    Args:
        seconds: after which it is ended anyway.
        looks: whether to look if they do anything. (Items that look themselves would take that for work.)
    """
    over, end = threading.Event(), time.monotonic() + seconds
    words = "run_parallel waits for ever: neither this process nor one that it has started does anything any more"

    def too_long(*_: Any) -> None:
        raise Outcome(
            "wrong", f"{words}. A worker that has failed, or that waits to get rid of its results, never ends"
        )

    def watch() -> None:
        family = Family(os.getpid())
        while not over.wait(0.1):
            if (looks and family.is_still(but=set())) or time.monotonic() > end:
                os.kill(os.getpid(), signal.SIGALRM)
                over.wait(0.5)
                return end_children()  # for whom a pool's exit would wait

    kept = signal.signal(signal.SIGALRM, too_long)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGALRM, kept)


def end_children() -> None:
    """End what a learner's code has started."""
    import psutil

    for child in _children():
        with contextlib.suppress(psutil.Error):
            child.kill()


def helpers_can_be_sent(answer: Any) -> None:
    """What stands beside the answer in the notebook is found here too, in ``__main__``: pickle looks for it there."""
    for name, value in list(getattr(answer.function, "__globals__", {}).items()):
        if isinstance(value, types.FunctionType | type) and value.__name__ == name:
            if value.__module__ not in sys.modules:
                value.__module__ = "__main__"
            if value.__module__ == "__main__":
                vars(sys.modules["__main__"]).setdefault(name, value)


def still_there(seconds: float = 3.0) -> int:
    """How many child processes are still at work, after a moment to end. Helpers of Python and of the course aside."""
    end = time.monotonic() + seconds
    while True:
        multiprocessing.active_children()  # asks those that have ended for their exit code
        if not (left := [child for child in _children() if _works(child)]) or time.monotonic() > end:
            return len(left)
        time.sleep(0.02)


def _children() -> list[Any]:
    """All descendants, but for the helpers that Python keeps, and the one that the course keeps for its next launch."""
    import psutil

    from utils.ranks import starters

    helpers = {_pid(forkserver._forkserver), _pid(resource_tracker._resource_tracker), _pid(starters._zygote)}
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in helpers]


def _pid(helper: Any) -> int | None:
    names = ("_forkserver_pid", "_pid", "pid")
    return next((pid for name in names if (pid := getattr(helper, name, None))), None)


def _works(child: Any) -> bool:
    import psutil

    try:  # (one that has ended stays in the table of processes until its parent waits for it: os.waitpid)
        return child.status() != psutil.STATUS_ZOMBIE or child.ppid() == os.getpid()
    except psutil.Error:
        return False
