"""In a rank: how many bytes a learner's call holds at the same time, in tensors and in everything else of Python."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NOISE = 40_000  # bytes that the check itself holds more after a call than before
PYTHONS_OWN = 250_000  # bytes that a call of a learner's function needs on its way through the check


class _Storages(TorchDispatchMode):
    """The bytes of all storages that operators have met and that are still there."""

    def __init__(self, given: set[int], python: bool = False) -> None:
        super().__init__()
        self.given, self.most = given, 0
        self._python = _in_python() if python else None
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for key in [key for key, (storage, _) in self._alive.items() if storage.expired()]:
            del self._alive[key]
        for used in tree_leaves((args, kwargs, result)):
            if isinstance(used, torch.Tensor) and (storage := used.untyped_storage())._cdata not in self.given:
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.most = max(self.most, sum(nbytes for _, nbytes in self._alive.values()))
        return result

    def now(self, *beside: torch.Tensor) -> int:
        """The bytes that live at this moment, without the storages of these tensors; with Python's if they count."""
        without = {one.untyped_storage()._cdata for one in beside}
        living = [
            torch.UntypedStorage._new_with_weak_ptr(ref.cdata)
            for key, (ref, _) in self._alive.items()
            if key not in without and not ref.expired()
        ]
        more = 0 if self._python is None else _in_python() - self._python - NOISE
        return sum(storage.nbytes() for storage in living) + max(0, more)


def living(*given: torch.Tensor, python: bool = False) -> _Storages:
    """For ``with``, as often as one likes: ``now()`` says how many bytes beside these are still there.

    With ``python`` also numpy's arrays, bytes and lists that were not there when this was called, beyond some noise.
    """
    if python:
        count_pythons_bytes()
    return _Storages({one.untyped_storage()._cdata for one in given}, python)


def _in_python() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


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
        with _Storages({one.untyped_storage()._cdata for one in given}) as mode:
            yield found
    finally:
        found["tensors"] = mode.most
        if python:
            found["python"] = max(0, tracemalloc.get_traced_memory()[1] - PYTHONS_OWN)
