"""The factor of a pre-multiplied sum (``torch.distributed._make_nccl_premul_sum``).

An operator of c10d does not tell it to Python. But whoever asks for such a sum writes it into the collective's options
just before, in the same thread: so it is noted there.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d

from simgpu import install

PREMULTIPLIED = ReduceOp.PREMUL_SUM
_noted = threading.local()


def connect() -> None:
    """Until ``simgpu.uninstall``."""
    for options in (c10d.AllreduceOptions, c10d.ReduceOptions, c10d.ReduceScatterOptions):
        install.replace(options, "reduceOp", _noting)


def _noting(plain: Any) -> property:
    def note(options: Any, op: Any) -> None:
        state = op.__getstate__() if isinstance(op, ReduceOp) else op
        if isinstance(state, tuple):  # the kind and the factor
            _noted.factor = state[1]
        plain.__set__(options, op)

    return property(plain.__get__, note)


def scaled(value: Any, written: set[int]) -> Any:
    """Tensors times the factor, in place where the collective writes into them."""
    if isinstance(value, torch.Tensor):
        return value.mul_(_noted.factor) if id(value) in written else value * _noted.factor
    if isinstance(value, (list, tuple)):
        return [scaled(each, written) for each in value]
    return value
