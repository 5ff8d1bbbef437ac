"""Copies between simulated GPUs, and between them and the host: which link they take, and who waits.

As PyTorch does it on CUDA:

- A copy from GPU to GPU runs on the source's current stream; the target's stream waits for it. The host goes on.
- A copy from or to the host's ordinary (pageable) memory goes through a small pinned buffer of the driver, and is
  slower for it. The host waits. For a copy from or to pinned memory with ``non_blocking=True`` it does not.
- Pinning new memory takes the host time, for each byte, and so does the copy into it.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from simgpu import costs, happens_before
from simgpu._torch import address_of
from simgpu.cluster import current
from simgpu.phases import COMMUNICATION, phase_now
from simgpu.work import Work
from utils.hardware.links import point_to_point

if TYPE_CHECKING:
    from simgpu.cluster import Cluster
    from simgpu.hardware import GPU
    from simgpu.memory import Allocation
    from simgpu.tensor import SimTensor
    from simgpu.work import Lane

_pinned: weakref.WeakSet = weakref.WeakSet()


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a CPU tensor in pinned memory, from where copies to a GPU are fast and need not be waited for."""
    cluster = current()
    gpu = cluster.gpus[cluster.current_index()]
    needed = tensor.nbytes + sum(storage.nbytes() for storage in _pinned)
    new = max(0, needed - cluster.pinned_bytes)  # torch keeps what it has pinned, for the next one who asks
    cluster.pinned_bytes += new
    seconds = tensor.nbytes / gpu.model.pageable_bytes_per_s + new / gpu.model.pinning_bytes_per_s

    def take(lane: Lane) -> None:
        lane.time += seconds

    cluster.clock.act(take, gpu.index)
    copy = torch.empty_like(tensor, pin_memory=True).copy_(tensor) if torch.cuda.is_available() else tensor.clone()
    count_as_pinned(copy)
    return copy


def count_as_pinned(tensor: torch.Tensor) -> None:
    """From now on a CPU tensor is in pinned memory, as far as its copies are concerned."""
    _pinned.add(tensor.untyped_storage())


def is_pinned(tensor: torch.Tensor) -> bool:
    """Is it in memory that ``pin`` made?"""
    return address_of(tensor.untyped_storage()) in map(address_of, _pinned)


def kernels() -> list[tuple[str, Any, str]]:
    """``tensor.pin_memory()`` and ``is_pinned()`` do this. (With a real GPU too, where the memory is really pinned.)"""
    return [
        ("_pin_memory", lambda tensor, device=None: pin(tensor), "CPU"),
        ("is_pinned", lambda tensor, device=None: is_pinned(tensor), "CPU"),
    ]


def between_gpus(cluster: Cluster, tensor: SimTensor, into: SimTensor) -> None:
    """Copy a tensor into another one (or into a part of it), on the same GPU or from GPU to GPU."""
    gpu, target, nbytes = tensor.gpu, into.gpu, tensor.nbytes
    work = _between_gpus(cluster, tensor.allocation, gpu, target, nbytes)
    into.allocation.last_write = work
    happens_before.launched(work, [tensor], [into])


def _between_gpus(cluster: Cluster, source: Allocation, gpu: int, target: int, nbytes: int) -> Work:
    stream = cluster.current_stream(gpu)
    if gpu == target:  # from one place of its memory to another: read and write
        kernel = costs.kernel(cluster.gpus[gpu].model, costs.NOTHING, "", costs.Moved(2 * nbytes))
        return cluster.clock.launch(
            *("copy", phase_now(), f"GPU {gpu}", kernel.seconds),
            **cluster.slowed(cluster.gpus[gpu], kernel),
            gpus=(gpu,),
            queues=(stream,),
            needs=[source.last_write],
            nbytes=2 * nbytes,
        )
    link, places = cluster.path(gpu, target)
    return cluster.clock.launch(
        *("copy", COMMUNICATION, f"GPU {gpu} → GPU {target}", point_to_point(nbytes, link.for_copies())),
        gpus=(gpu, target),
        queues=(stream,),
        ports=places,
        followers=(cluster.current_stream(target),),
        needs=[source.last_write],
        nbytes=nbytes,
    )


def to_host(
    cluster: Cluster, tensor: SimTensor, target: torch.Tensor | None = None, non_blocking: bool = False
) -> None:
    """Copy a tensor to the host: to ``target``, or (None) to new memory, which is pageable."""
    gpu, nbytes = cluster.gpus[tensor.gpu], tensor.nbytes
    pinned = target is not None and is_pinned(target)
    work = cluster.clock.launch(
        *("copy to host", COMMUNICATION, f"{gpu.name} → host", _host_seconds(gpu.model, nbytes, pinned)),
        gpus=(gpu.index,),
        queues=(cluster.current_stream(gpu.index),),
        ports=(gpu.host_out,),
        needs=[tensor.allocation.last_write],
        host_waits=not (non_blocking and pinned),
        nbytes=nbytes,
    )
    happens_before.launched(work, [tensor], [], pinned=None if work.host_waits else target)


def from_host(cluster: Cluster, source: torch.Tensor, into: SimTensor, non_blocking: bool = False) -> None:
    """Copy a CPU tensor into one on a GPU."""
    gpu = cluster.gpus[into.gpu]
    pinned = is_pinned(source)
    work = cluster.clock.launch(
        *("copy from host", COMMUNICATION, f"host → {gpu.name}", _host_seconds(gpu.model, source.nbytes, pinned)),
        gpus=(gpu.index,),
        queues=(cluster.current_stream(gpu.index),),
        ports=(gpu.host_in,),
        host_waits=not (non_blocking and pinned),
        nbytes=source.nbytes,
    )
    into.allocation.last_write = work
    # From pageable memory the host may go on when the driver has the bytes, and they are not on the GPU yet.
    pinned_source = None if work.host_waits else source
    happens_before.launched(work, [], [into], host_waits=not non_blocking, pinned=pinned_source)


def _host_seconds(gpu: GPU, nbytes: int, pinned: bool) -> float:
    link = gpu.host.for_copies()
    if not pinned:
        link = replace(link, bytes_per_s=min(link.bytes_per_s, gpu.pageable_bytes_per_s))
    return point_to_point(nbytes, link)
