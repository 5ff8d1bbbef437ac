"""In a process: how many bytes it gets from other ranks."""

from __future__ import annotations

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
