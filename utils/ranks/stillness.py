"""Whether a rank stands still: its main thread stays at one instruction, and nothing in its process computes.

Who sleeps, or waits in C++ as DDP does in backward(), computes nothing; who waits for a GPU stays, but computes: CUDA
asks again and again. From one moment alone nobody can tell a wait for ever from one that ends by itself: whoever looks
again and again decides after how many looks it is a stand-still.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

POLLING = 0.005  # seconds of a core that a wait may use in a tenth of a second, as that for workers in a TCPStore does
COMPUTING = 0.1  # of a core, by all threads together: who waits uses less, also if it asks a file again and again
MESSENGERS = "gloo_tcp_loop"  # gloo's threads; they turn round and round when a message has come that nobody receives
looking = threading.Lock()  # whoever holds frames of a running thread holds its tensors too: who counts these waits
_TASKS = Path("/proc/self/task")


def instruction(thread: int) -> tuple[int, int]:
    """The frame and the instruction in it at which a thread is now."""
    with looking:
        frame = sys._current_frames()[thread]
        return id(frame), frame.f_lasti


def stands_still(thread: int, seconds: float = 0.1) -> tuple[bool, bool]:
    """Whether a thread stays at one instruction for a moment, and whether it also computes nothing there."""
    before, used = instruction(thread), _seconds_of_core(thread)
    time.sleep(seconds)
    stays = thread in sys._current_frames() and instruction(thread) == before
    return stays, stays and _seconds_of_core(thread) - used < POLLING


def _seconds_of_core(thread: int) -> float:
    """What a thread of this process has computed so far; on systems that cannot tell (macOS), what all threads have."""
    if hasattr(time, "pthread_getcpuclockid"):
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    return time.process_time()


class Work:
    """What all threads of this process do, but for the one that asks."""

    def __init__(self) -> None:
        self._own = threading.get_native_id()
        self._asked, self._used, self._carried = time.monotonic(), 0.0, 0.0

    def goes_on(self) -> bool:
        """Whether, since the last question, a thread has computed; or one is about to, reads a disk, or has a child
        process, which may have news. Gloo's messengers may compute; one that waits for a core may hold a message."""
        now, carried = time.monotonic(), 0.0
        if _TASKS.exists():
            threads = list(_threads(but=self._own))
            carried = sum(thread.seconds for thread in threads if thread.carries)
            used = sum(thread.seconds for thread in threads if not thread.carries)
            idle = carried == self._carried
            busy = any(thread.busy and (idle or not thread.carries) for thread in threads)
        else:
            busy, used = False, time.process_time() - time.thread_time()
        elapsed, computed = now - self._asked, abs(used - self._used)  # (less than before: a thread has ended)
        self._asked, self._used, self._carried = now, used, carried
        return busy or computed > COMPUTING * max(elapsed, 0.1)


class _Thread(NamedTuple):
    carries: bool  # messages of gloo
    busy: bool
    seconds: float  # computed so far


def _threads(but: int) -> Iterator[_Thread]:
    """The threads of this process, as Linux knows them."""
    for folder in _TASKS.iterdir():
        try:
            name, _, numbers = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            seconds = int((folder / "schedstat").read_text().split()[0]) / 1e9
            busy = numbers.split()[0] != "S" or bool((folder / "children").read_text().strip())
            if int(folder.name) != but:
                yield _Thread(name.startswith(MESSENGERS), busy, seconds)
        except (OSError, ValueError, IndexError):
            yield _Thread(False, True, 0.0)  # it has ended meanwhile
