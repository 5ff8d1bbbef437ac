"""In a process: how many bytes it gets, from other ranks and from the disk."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Received(TorchDispatchMode):
    """For ``with``: ``bytes`` that collectives bring this rank."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional") and "wait" not in func.__name__:
            self.bytes += sum(one.nbytes for one in tree_leaves(found) if isinstance(one, torch.Tensor))
        return found


class Reads:
    """For ``with``: ``bytes`` that were read from files in a folder; 0 where the system does not tell (macOS).

    Linux counts what the process has read; modules that are imported meanwhile, whole files elsewhere, are taken off.
    """

    def __init__(self, folder: Path) -> None:
        self.bytes, self._elsewhere, self._folder, self._on = 0, 0, os.path.realpath(folder), False
        sys.addaudithook(self._opened)

    def __enter__(self) -> Reads:
        self._before, self._on = _read(), True
        return self

    def __exit__(self, *_: Any) -> None:
        self._on = False
        self.bytes = max(0, _read() - self._before - self._elsewhere)

    def _opened(self, event: str, given: tuple[Any, ...]) -> None:
        if self._on and event == "open" and isinstance(given[0], str | bytes):
            path = os.path.realpath(os.fsdecode(given[0]))
            if not path.startswith(f"{self._folder}/"):
                with contextlib.suppress(OSError):
                    self._elsewhere += os.path.getsize(path)


def _read() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/io").read_text(encoding="utf-8").splitlines():
            if line.startswith("rchar:"):
                return int(line.split()[1])
    return 0
