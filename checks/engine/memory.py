"""In a rank: how many bytes a learner's call holds at the same time, in tensors and in everything else of Python."""

from __future__ import annotations

import contextlib
import gc
import os
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PYTHONS_OWN = 250_000  # bytes that a call of a learner's function needs on its way through the check
# Seconds that are waited for a tensor of which nothing is left here: each time, and in all; longer on a busy machine.
LETS_GO, PATIENCE = 0.05, 0.3
_looks_left = 400  # in a process, 5 ms apart: who keeps something once is not waited for again


class _Storages(TorchDispatchMode):
    """The bytes of all storages that operators have met and that are still there."""

    def __init__(self, given: Sequence[torch.Tensor], patience: float = PATIENCE) -> None:
        super().__init__()
        self.given, self.most = {one.untyped_storage()._cdata for one in given}, 0
        self._theirs = [_addresses(one.untyped_storage()) for one in given]
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._busy = _processes_for_each_core()
        self._patience = patience * self._busy

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._forget_expired()
        here = set()
        for used in tree_leaves((args, kwargs, result)):
            if isinstance(used, torch.Tensor) and not self._is_given(storage := used.untyped_storage()):
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                here.add(storage._cdata)
        if self._sum() > self.most:
            self._wait_for_others(here)
            self.most = max(self.most, self._sum())
        return result

    def _is_given(self, storage: torch.UntypedStorage) -> bool:
        """Whether it is one of the given ones, or lies in one: a tensor made of a view of numpy's does."""
        here = _addresses(storage)
        return storage._cdata in self.given or any(here and here[0] in theirs for theirs in self._theirs)

    def _wait_for_others(self, here: set[int]) -> None:
        """A thread of gloo lets go of a message's tensor a moment after the wait for it is over."""
        until = time.monotonic() + LETS_GO * self._busy
        while self._sum() > self.most and set(self._alive) - here and self._patience > 0 and time.monotonic() < until:
            time.sleep(0.001)
            self._patience -= 0.001
            self._forget_expired()

    def _forget_expired(self) -> None:
        for key in [key for key, (storage, _) in self._alive.items() if storage.expired()]:
            del self._alive[key]

    def _sum(self) -> int:
        return sum(nbytes for _, nbytes in self._alive.values())

    def now(self, *beside: torch.Tensor, most: int = 0) -> int:
        """The bytes that live, without the storages of these tensors; if more than ``most``, after a moment."""
        without = {one.untyped_storage()._cdata for one in beside}
        until = time.monotonic() + LETS_GO * self._busy
        while True:
            self._forget_expired()
            refs = [ref for key, (ref, _) in self._alive.items() if key not in without]
            there = [torch.UntypedStorage._new_with_weak_ptr(ref.cdata) for ref in refs if not ref.expired()]
            held = sum(one.nbytes() for one in there)  # (as large as it is now: some are emptied)
            del there
            if held <= most or time.monotonic() > until:
                return held
            time.sleep(0.001)


def _processes_for_each_core() -> float:
    """That want to compute, in the last minute; at least 1, which stands for a machine that does not say it too."""
    with contextlib.suppress(OSError):  # a sandbox without /proc
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    return 1.0


def _addresses(storage: torch.UntypedStorage) -> range:
    """Where its bytes are; nowhere if they are only counted."""
    first = 0
    with contextlib.suppress(RuntimeError):  # a DTensor has none of its own
        first = storage.data_ptr()
    return range(first, first + storage.nbytes() if first else 0)


def living(*given: torch.Tensor) -> _Storages:
    """For ``with``, as often as one likes: ``now()`` says how many bytes beside these are still there."""
    return _Storages(given, patience=0.0)


def is_kept(*storages: StorageWeakRef) -> bool:
    """Whether something still holds memory of which the check itself has let go. A thread that watches where the
    program is may hold an answer's frame for a moment longer, and gloo a message."""
    global _looks_left
    gc.collect()
    while (kept := not all(one.expired() for one in storages)) and _looks_left:
        time.sleep(0.005)
        _looks_left -= 1
    return kept


def beside(*tensors: torch.Tensor) -> int:
    """The bytes that lie in the memory of these tensors and are none of theirs: what is kept with a view."""
    return sum(one.untyped_storage().nbytes() - one.nbytes for one in tensors)


def count_pythons_bytes() -> None:
    """From zero, and until the process ends: before Python 3.12.9 and 3.13.2 `tracemalloc.stop()` crashes the process
    if a thread of C++, such as autograd's or gloo's, takes the GIL at that moment (CPython's issue 128679)."""
    tracemalloc.start(1)
    tracemalloc.clear_traces()


@contextlib.contextmanager
def held(*given: torch.Tensor, python: bool = False) -> Iterator[dict[str, int]]:
    """In the ``with`` block: ``tensors`` beside these, and if that is wanted, ``python``: numpy, bytes, lists."""
    found = {"tensors": 0, "python": 0}
    if python:
        count_pythons_bytes()
    try:
        with _Storages(given) as mode:
            yield found
    finally:
        found["tensors"] = mode.most
        if python:
            found["python"] = max(0, tracemalloc.get_traced_memory()[1] - PYTHONS_OWN)
