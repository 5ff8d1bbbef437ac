"""Copies between simulated GPUs, and between them and the host: which link they take, and who waits.

As PyTorch does it on CUDA:

- A copy from GPU to GPU runs on the source's current stream; the target's stream waits for it. The host goes on.
- A copy from the host's ordinary memory, and every copy to the host, makes the host wait. From pinned memory with
  ``non_blocking=True`` the host goes on.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from utils.hardware.links import point_to_point
from utils.simgpu import costs
from utils.simgpu.phases import COMMUNICATION, phase_now
from utils.simgpu.work import Work

if TYPE_CHECKING:
    from utils.simgpu.cluster import Cluster
    from utils.simgpu.memory import Allocation

_pinned: weakref.WeakSet = weakref.WeakSet()


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a CPU tensor in pinned memory, from where ``.to("simgpu:0", non_blocking=True)`` does not wait."""
    copy = tensor.clone()
    _pinned.add(copy.untyped_storage())
    return copy


def is_pinned(tensor: torch.Tensor) -> bool:
    """Is it in memory that ``pin`` made?"""
    return tensor.untyped_storage()._cdata in {storage._cdata for storage in _pinned}


def kernels() -> list[tuple[str, Any, str]]:
    """``tensor.pin_memory()`` and ``is_pinned()`` do this, unless there are real GPUs to pin memory for."""
    if torch.cuda.is_available():
        return []
    return [
        ("_pin_memory", lambda tensor, device=None: pin(tensor), "CPU"),
        ("is_pinned", lambda tensor, device=None: is_pinned(tensor), "CPU"),
    ]


def between_gpus(cluster: Cluster, source: Allocation, target: int, nbytes: int) -> Work:
    """Copy ``nbytes`` from a tensor's GPU to GPU ``target``."""
    gpu = source.memory.gpu
    stream = cluster.current_stream(gpu)
    if gpu == target:  # from one place of its memory to another: read and write
        seconds = costs.seconds(cluster.gpus[gpu].model, 0, "", 2 * nbytes)
        return cluster.clock.launch(
            *("copy", phase_now(), f"GPU {gpu}", seconds),
            gpus=(gpu,),
            queues=(stream,),
            needs=[source.last_write],
            nbytes=2 * nbytes,
        )
    link, places = cluster.path(gpu, target)
    return cluster.clock.launch(
        *("copy", COMMUNICATION, f"GPU {gpu} → GPU {target}", point_to_point(nbytes, link)),
        gpus=(gpu, target),
        queues=(stream,),
        ports=places,
        followers=(cluster.current_stream(target),),
        needs=[source.last_write],
        nbytes=nbytes,
    )


def to_host(cluster: Cluster, source: Allocation, nbytes: int) -> Work:
    """Copy ``nbytes`` from a GPU to the host, which waits."""
    gpu = cluster.gpus[source.memory.gpu]
    return cluster.clock.launch(
        *("copy to host", COMMUNICATION, f"{gpu.name} → host", point_to_point(nbytes, gpu.model.host)),
        gpus=(gpu.index,),
        queues=(cluster.current_stream(gpu.index),),
        ports=(gpu.host_out,),
        needs=[source.last_write],
        host_waits=True,
        nbytes=nbytes,
    )


def from_host(cluster: Cluster, target: int, source: torch.Tensor, non_blocking: bool = False) -> Work:
    """Copy a CPU tensor to a GPU."""
    gpu = cluster.gpus[target]
    return cluster.clock.launch(
        *("copy from host", COMMUNICATION, f"host → {gpu.name}", point_to_point(source.nbytes, gpu.model.host)),
        gpus=(target,),
        queues=(cluster.current_stream(target),),
        ports=(gpu.host_in,),
        host_waits=not (non_blocking and is_pinned(source)),
        nbytes=source.nbytes,
    )
