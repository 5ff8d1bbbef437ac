"""A disk that waits for the check, and threads that wait for the training: so that no race is won by luck."""

from __future__ import annotations

import io
import os
import threading
import time
from typing import Any

PATIENCE = 5.0  # seconds that a write waits for the check; only who waits for the disk himself sees them pass
MOMENT = 0.3  # seconds that other threads are held back while save runs; who waits for them loses no more than that


class SlowDisk:
    """``write(state, path)`` as the answer gets it: a ``go`` lets each write begin, a ``finish`` lets it end."""

    def __init__(self) -> None:
        self.go, self.finish, self.half = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
        self.error: BaseException | None = None
        self.no_file = False  # the error comes before there is a file
        self.notes: list[dict[str, Any]] = []
        self.copies: list[Any] = []  # weak references to what it got
        self.busy = self.most = 0

    def write(self, state: Any, path: Any) -> None:
        """Writes half of the bytes, waits, and writes the rest."""
        import torch
        from torch.multiprocessing.reductions import StorageWeakRef
        from torch.utils._pytree import tree_leaves

        here = threading.current_thread() is threading.main_thread()
        note: dict[str, Any] = {
            "main": here,
            "path": os.path.abspath(path),
            "done": False,
            "ended": False,
            "late": False,
        }
        self.notes.append(note)
        self.copies += [StorageWeakRef(x.untyped_storage()) for x in tree_leaves(state) if isinstance(x, torch.Tensor)]
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            note["late"] = not (here or self.go.acquire(timeout=PATIENCE))
            if self.error is not None and self.no_file:
                if not (here or note["late"]):
                    self.finish.acquire(timeout=PATIENCE)
                raise self.error
            content = io.BytesIO()
            torch.save(state, content)
            with open(path, "wb") as file:
                file.write(content.getvalue()[: content.tell() // 2])
                file.flush()
                self.half.set()
                if not (here or note["late"]):
                    self.finish.acquire(timeout=PATIENCE)
                if self.error is not None:
                    raise self.error
                file.write(content.getvalue()[content.tell() // 2 :])
                note["ino"] = os.fstat(file.fileno()).st_ino
            note["done"] = True
        finally:
            self.busy -= 1
            note["ended"] = True

    def permit(self) -> None:
        """One write, from its beginning to its end."""
        self.go.release()
        self.finish.release()


class Held:
    """Other threads do not get on between ``hold`` and ``release``, for a moment at most.

    A thread that copies what the training is about to change would win or lose a race; here it loses.
    """

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self._until = 0.0

    def hold(self) -> None:
        self._free.clear()
        self._until = time.monotonic() + MOMENT
        threading.settrace(self._wait)  # each thread calls it when it calls a function

    def release(self) -> None:
        self._free.set()
        threading.settrace(None)  # type: ignore[arg-type]

    def _wait(self, *_: Any) -> None:
        self._free.wait(max(0.0, self._until - time.monotonic()))
