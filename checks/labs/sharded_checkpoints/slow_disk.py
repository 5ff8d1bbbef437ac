"""A disk that waits for the check, and threads that wait for the training: so that no race is won by luck."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

PATIENCE = 4.0  # seconds that a write waits for the check; only who waits for the disk himself sees them pass
MOMENT = 0.6  # seconds that other threads are held back; who waits for them loses no more than that


class SlowDisk:
    """``write(state, path)`` as the answer gets it: half of the bytes, and it ends when it may, or at once (free)."""

    def __init__(self, free: bool = False) -> None:
        self.may_end, self.half = threading.Semaphore(9 * free), threading.Event()
        self.error: BaseException | None = None
        self.at_once = False  # the error comes before there is a file
        self.begun = self.ended = self.done = self.most = 0  # writes; how many at once
        self.in_main, self.path, self.inode = False, "", 0

    def write(self, state: Any, path: Any) -> None:
        self.in_main = threading.current_thread() is threading.main_thread()
        self.begun, self.path, content = self.begun + 1, os.path.abspath(path), io.BytesIO()
        self.most = max(self.most, self.begun - self.ended)
        try:
            if self.at_once and self.error:
                raise self.error
            torch.save(state, content)
            with open(path, "wb") as file:
                file.write(content.getvalue()[: content.tell() // 2])
                file.flush()
                self.half.set()
                self.in_main or self.may_end.acquire(timeout=PATIENCE)
                if self.error:
                    raise self.error
                file.write(content.getvalue()[content.tell() // 2 :])
                self.inode = os.fstat(file.fileno()).st_ino
            self.done += 1
        finally:
            self.ended += 1


@contextlib.contextmanager
def others_held() -> Iterator[None]:
    """New threads stand still, for a moment at most: who copies there what the training is about to change is late."""
    free, until = threading.Event(), time.monotonic() + MOMENT

    def wait(*_: Any) -> None:
        free.wait(max(0.0, until - time.monotonic()))

    threading.settrace(wait)  # each new thread calls it when it calls a function
    try:
        yield
    finally:
        free.set()
        threading.settrace(None)  # type: ignore[arg-type]


def soon(true: Any) -> bool:
    """Whether it becomes true: a thread may be about to end."""
    until = time.monotonic() + PATIENCE
    while not (found := true()) and time.monotonic() < until:
        time.sleep(0.01)
    return bool(found)
