"""Whether all threads of this process wait, or one of them computes, is about to, sleeps, or reads a disk.

Linux tells in /proc: the state of each thread, the system call that it is in, how often it was given a core. Elsewhere
only the time that the process has computed is known, so that a long sleep looks like a wait.
"""

from __future__ import annotations

import math
import os
import platform
import struct
import threading
import time
from pathlib import Path

COMPUTING = 0.1  # of a core: a wait needs less, also one that asks a file again and again
_TASKS = Path("/proc/self/task")
# Numbers of system calls that end by themselves, by machine; and which argument says when, in which form.
_CALLS = {
    "x86_64": {
        202: ("futex", 3), 230: ("sleep", 2), 61: ("child", 0), 247: ("child", 0),
        7: ("milliseconds", 2), 232: ("milliseconds", 3), 281: ("milliseconds", 3), 271: ("timespec", 2),
        270: ("timespec", 4), 23: ("timespec", 4),
    },
    "aarch64": {
        98: ("futex", 3), 115: ("sleep", 2), 95: ("child", 0), 260: ("child", 0),
        22: ("milliseconds", 3), 73: ("timespec", 2), 72: ("timespec", 4),
    },
}.get(platform.machine(), {})  # fmt: skip
_REALTIME, _BITSET = 256, 9  # parts of a futex' operation
_UNTIL = 1  # a flag of a sleep: until a time, not for some seconds


class Threads:
    """Asked again and again whether all threads wait; compares with what was so the last time.

    Args:
        until: the monotonic time at which waiting is over anyway; what ends by itself before that is no wait.
    """

    def __init__(self, until: float) -> None:
        self._until = until
        self._main = os.getpid()  # after a fork, Python still has the former number of its main thread
        self._own = threading.get_native_id()
        self._asked, self._used = time.monotonic(), self._seconds_of_core()
        self._turns: dict[int, int] = {}  # how often each thread was given a core
        self._messengers, self.spins = 0.0, False

    def all_wait(self, main_counts: bool = True) -> bool:
        """Whether nothing has happened in this process since the last question, nor will by itself.

        Args:
            main_counts: else only the other threads are looked at.
        """
        now, used = time.monotonic(), self._seconds_of_core()
        elapsed, worked = now - self._asked, used - self._used
        self._asked, self._used = now, used
        if not (_CALLS and _TASKS.exists()):
            return worked < COMPUTING * max(elapsed, 0.1)
        quiet, before, self._messengers = True, self._messengers, 0.0
        turns, self._turns = self._turns, {}
        python = {thread.native_id for thread in threading.enumerate() if thread.name != "notebook"}
        for task in map(int, os.listdir(_TASKS)):
            if task == self._own or (task == self._main and not main_counts):
                continue
            try:
                quiet = self._waits(task, turns, task in python) and quiet
            except (OSError, ValueError, IndexError):
                quiet = False  # it has ended since, or begun
        # gloo's own thread turns round and round when a message has come that nobody receives.
        self.spins = self._messengers - before > COMPUTING * max(elapsed, 0.1)
        worked -= self._messengers - before
        return quiet and worked < COMPUTING * max(elapsed, 0.1)

    def _seconds_of_core(self) -> float:
        return time.process_time() - time.thread_time()  # what the watch itself needs does not count

    def _waits(self, task: int, turns: dict[int, int], python: bool) -> bool:
        folder, main = _TASKS / str(task), task == self._main
        state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        used, _, self._turns[task] = map(int, (folder / "schedstat").read_text().split())
        if (folder / "comm").read_text().startswith("gloo_tcp_loop"):
            self._messengers += used / 1e9
        if state == "R":
            # A thread that looks for messages every few milliseconds is often seen at it. One that is ready, and was
            # given no core since the last look, may have a message in its hands.
            return self._turns[task] > turns.get(task, self._turns[task])
        if state != "S" or (folder / "children").read_text().strip():
            return False
        if not (main or python):
            return True
        number, *arguments = (folder / "syscall").read_text().split()
        if not number.isdigit():
            return False  # just about to run
        kind, place = _CALLS.get(int(number), ("", 0))
        value = int(arguments[place], 16)
        if kind == "child":
            return False
        if kind == "sleep":
            # Python's own sleeps until a time, and then does something else. A library sleeps for some seconds between
            # two questions, as those to a store that nobody has opened, and these seconds grow.
            return not int(arguments[1], 16) & _UNTIL
        return self._seconds_left(kind, value, int(arguments[1], 16)) > self._until - time.monotonic()

    @staticmethod
    def _seconds_left(kind: str, value: int, operation: int) -> float:
        """In how many seconds a system call ends by itself, at the latest."""
        if kind == "milliseconds":
            return value / 1000 if value < 1 << 31 else math.inf  # (-1: for ever)
        if kind == "futex" and value and operation & 127 == _BITSET:
            return _seconds_at(value) - (time.time() if operation & _REALTIME else time.monotonic())
        return _seconds_at(value) if kind and value else math.inf


def _seconds_at(address: int) -> float:
    """The struct timespec at an address of this process, which may have gone by now."""
    with open("/proc/self/mem", "rb") as memory:
        memory.seek(address)
        seconds, nanoseconds = struct.unpack("qq", memory.read(16))
    return seconds + nanoseconds / 1e9
