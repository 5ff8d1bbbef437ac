"""Pinned memory that C++ asks for: DistributedDataParallel(find_unused_parameters=True), or static_graph=True.

torch has no way to give a device that is written in Python an allocator of pinned memory. So, for such models only,
the CPU's ``empty_strided`` gives ordinary memory instead, which counts as pinned.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from simgpu import install, transfers
from simgpu._torch import destroy
from simgpu.cluster import current, exists

_libraries: list[torch.library.Library] = []


def for_models_that_need_it(plain: Callable[..., None]) -> Callable[..., None]:
    """``DistributedDataParallel.__init__``, which looks whether the model will ask for pinned memory."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("find_unused_parameters") or kwargs.get("static_graph"):
            _allow()
        plain(self, *args, **kwargs)

    return __init__


def _allow() -> None:
    if _libraries or not (exists() and current().between_ranks):
        return
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Overriding a previously registered kernel": yes
        library.impl("empty_strided", _empty_strided, "CPU")
    _libraries.append(library)
    install.on_uninstall(lambda: destroy(_libraries.pop()))


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    elements = 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    flat = torch.ops.aten.empty.memory_format([elements], dtype=dtype, device="cpu")
    if pin_memory:
        transfers.count_as_pinned(flat)
    return flat.as_strided(size, stride)
