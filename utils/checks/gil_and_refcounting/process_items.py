"""What the check of this lab's last exercise runs in a process of its own: items that know who computes them, and when.

It counts instead of measuring time: which process gets which item, and whether all processes work at once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import types
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from utils.checks.gil_and_refcounting.probes import raised_by
from utils.checks.verdicts import Wrong

THREADS = 3  # of torch in the process that calls: forked workers inherit them
MEETING_S = 60.0  # right answers never wait so long
STILL_S = 2.0  # nobody has done anything for so long: nobody will
IDLE_S = 0.05  # of a core: what those who wait need in that time


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
    over, end = threading.Event(), time.monotonic() + seconds

    def too_long(*_: Any) -> None:
        raise Wrong(
            "one item raises an error, and run_parallel waits for ever: a worker that fails must not be waited for",
            measured="nobody does anything any more",
        )

    def watch() -> None:
        family = Family(os.getpid())
        while not over.wait(0.1):
            if family.is_still(but=set()) or time.monotonic() > end:
                return os.kill(os.getpid(), signal.SIGALRM)

    _helpers_can_be_sent(run_parallel)
    signal.signal(signal.SIGALRM, too_long)
    threading.Thread(target=watch, daemon=True).start()
    try:
        return raised_by(run_parallel, Failing(2), [3, 1, 2, 0], 2)
    finally:
        over.set()


def _helpers_can_be_sent(answer: Any) -> None:
    """What stands beside the answer in the notebook is found here too, in ``__main__``: pickle looks for it there."""
    for name, value in list(getattr(answer.function, "__globals__", {}).items()):
        if isinstance(value, types.FunctionType | type) and value.__name__ == name:
            if value.__module__ not in sys.modules:
                value.__module__ = "__main__"
            if value.__module__ == "__main__":
                vars(sys.modules["__main__"]).setdefault(name, value)


def _still_there(seconds: float = 3.0) -> int:
    """How many child processes are still at work, after a moment to end. Helpers of Python and of the course aside."""
    import psutil

    from utils.ranks import starters

    starters.shut_down()  # the course's own launcher keeps a process for the next launch
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
