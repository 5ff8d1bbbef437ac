"""Ctrl-C and the stop button while ranks work: counted, and answered at a point where nothing is half done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class InterruptFlag:
    """Counts Ctrl-C instead of letting it strike between any two lines of ours; wakes whoever waits for channels."""

    def __init__(self) -> None:
        self.count = 0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def fileno(self) -> int:
        """Readable after an interrupt."""
        return self._wake_read

    def strike(self, *_: Any) -> None:
        self.count += 1
        try:
            os.write(self._wake_write, b"!")
        except BlockingIOError:
            pass

    def drain(self) -> None:
        """The interrupts so far have been noticed."""
        try:
            os.read(self._wake_read, 512)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._wake_read)
        os.close(self._wake_write)


@contextmanager
def interrupts() -> Iterator[InterruptFlag]:
    """While this context lasts, SIGINT only raises a flag (in the main thread; elsewhere Python has no say)."""
    flag = InterruptFlag()
    before = None
    in_main = threading.current_thread() is threading.main_thread()
    try:
        if in_main:
            before = signal.signal(signal.SIGINT, flag.strike)
        yield flag
    finally:
        if in_main and before is not None:
            signal.signal(signal.SIGINT, before)
        flag.close()
