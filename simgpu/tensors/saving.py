"""``torch.save`` and ``torch.load`` for simulated tensors, ``map_location`` included.

A tensor is saved as its storage with the tag "simgpu:1", as one of CUDA is with "cuda:1". When it is loaded, torch
makes an empty tensor on that device and calls ``set_`` with the storage; both are ours.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from simgpu._torch import address_of, rebuild_parameter, rebuild_tensor, typed_storage, untyped
from simgpu.cluster import current, exists
from simgpu.memory import allocator as memory
from simgpu.memory.allocator import Allocation
from simgpu.tensors import copies
from simgpu.tensors.copies import copy_from_host
from simgpu.tensors.tensor import SimTensor, check_cluster


class LoadedStorage(torch.UntypedStorage):
    """Bytes that ``torch.load`` has read, and the simulated GPU that they are meant for."""

    simulated: torch.device
    allocation: Callable[[], Allocation | None] | None = None
    """On the GPU, once a tensor uses it; tensors that shared a storage when they were saved share it again."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's cannot be set, though its stub says so
        return self.simulated


def reduce(tensor: SimTensor, protocol: int) -> Any:
    """What pickle stores for a simulated tensor."""
    check_cluster(tensor)
    if not current().numbers:
        raise RuntimeError("this cluster keeps only shapes (numbers=False), so there are no numbers to save")
    storage = typed_storage(wrap_storage=tensor.raw.untyped_storage(), dtype=tensor.dtype)
    place = (tensor.raw.storage_offset(), tuple(tensor.shape), tensor.raw.stride())
    if isinstance(tensor, torch.nn.Parameter):
        inner = tensor.detach()
        return rebuild_parameter, (inner, tensor.requires_grad, OrderedDict())
    return rebuild_tensor, (storage, *place, tensor.requires_grad, OrderedDict())


def _tag(storage: Any) -> str | None:
    """ "simgpu:1" if a simulated tensor on GPU 1 uses the storage."""
    if not exists():
        return None
    for gpu in current().gpus:
        if address_of(untyped(storage)) in gpu.memory.living:
            return f"simgpu:{gpu.index}"
    return None


def _restore(storage: Any, location: str) -> Any:
    if not location.startswith("simgpu"):
        return None
    gpu = current().named(torch.device(location))
    loaded = LoadedStorage(storage.nbytes())
    loaded.copy_(storage)
    loaded.simulated = torch.device("simgpu", gpu)
    return loaded


def load_into(
    tensor: SimTensor, source: Any = None, offset: int = 0, size: Any = None, stride: Any = None
) -> SimTensor:
    """What ``torch.load`` calls: the loaded bytes as a tensor on their GPU (``tensor`` is empty)."""
    if isinstance(source, SimTensor):  # a program's ``x.set_(y)``: to take over its memory
        if source.gpu != tensor.gpu:
            raise RuntimeError(f"Attempted to set the storage of a tensor on {tensor.device} to one on {source.device}")
        tensor.data = source
        return tensor
    loaded = untyped(source)
    if not isinstance(loaded, LoadedStorage):
        raise NotImplementedError("a simulated GPU cannot do set_: make a new tensor instead")
    cluster = current()
    raw = torch.empty(0, dtype=tensor.dtype).set_(loaded, offset, size, stride)
    if not cluster.numbers:
        return copy_from_host(raw, loaded.simulated.index)
    allocation = loaded.allocation() if loaded.allocation is not None else None
    if allocation is None:  # the first tensor that uses these bytes
        allocation = Allocation(cluster.gpus[loaded.simulated.index].memory, loaded, memory.OTHER)
        copies.from_host(cluster, raw, SimTensor(raw, allocation))
        loaded.allocation = weakref.ref(allocation)  # (weakly, since the allocation holds the storage)
    return SimTensor(raw, allocation)


PACKAGE = 5, _tag, _restore
"""What ``torch.serialization.register_package`` gets: priority, which tag a storage has, how it comes back."""
