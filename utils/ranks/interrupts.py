"""Ctrl-C and the stop button while ranks work: counted, and answered at a point where nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from utils.ranks.wire import Wakeup


class InterruptFlag(Wakeup):
    """Counts Ctrl-C instead of letting it strike between any two lines of ours; wakes whoever waits for channels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def strike(self, *_: Any) -> None:
        self.count += 1
        self.set()


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
