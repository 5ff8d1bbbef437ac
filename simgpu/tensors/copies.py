"""A simulated tensor goes to another device, with and without a trace in autograd: which link it takes, and who waits.

As PyTorch does it on CUDA:

- A copy from GPU to GPU runs on the source's current stream; the target's stream waits for it. The host goes on.
- A copy from or to the host's ordinary (pageable) memory goes through a small pinned buffer of the driver, and is
  slower for it. The host waits. For a copy from or to pinned memory with ``non_blocking=True`` it does not.
- Pinning new memory takes the host time, for each byte, and so does the copy into it.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import torch

from simgpu._torch import address_of, parse_to
from simgpu.cluster import Cluster, current
from simgpu.memory import allocator as memory
from simgpu.tensors import known
from simgpu.tensors.tensor import SimTensor, check_cluster, new
from simgpu.time import costs, happens_before
from simgpu.time.launches import launch_kernel
from simgpu.time.phases import COMMUNICATION, in_backward
from simgpu.time.work import Work
from utils.hardware.links import point_to_point

_pinned: weakref.WeakSet = weakref.WeakSet()


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a CPU tensor in pinned memory, from where copies to a GPU are fast and need not be waited for."""
    cluster = current()
    gpu = cluster.gpus[cluster.current_index()]
    needed = tensor.nbytes + sum(storage.nbytes() for storage in _pinned)
    new = max(0, needed - cluster.pinned_bytes)  # torch keeps what it has pinned, for the next one who asks
    cluster.pinned_bytes += new
    seconds = tensor.nbytes / gpu.model.pageable_bytes_per_s + new / gpu.model.pinning_bytes_per_s
    cluster.clock.act(lambda lane: lane.reach(lane.time + seconds), gpu.index)
    really = torch.cuda.is_available() and not cluster.as_cuda
    copy = torch.empty_like(tensor, pin_memory=True).copy_(tensor) if really else tensor.clone()
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
    if gpu == target:  # from one place of its memory to another: read and write
        home = cluster.gpus[gpu]
        kernel = costs.kernel(home.model, costs.Cost(read=nbytes, written=nbytes))
        work = launch_kernel("copy", kernel, [tensor], home)
    else:
        link, ports = cluster.path(gpu, target)
        work = Work(
            name="copy",
            phase=COMMUNICATION,
            place=f"GPU {gpu} → GPU {target}",
            seconds=point_to_point(nbytes, link.for_copies()),
            gpus=(gpu, target),
            queues=(cluster.current_stream(gpu),),
            ports=ports,
            followers=(cluster.current_stream(target),),
            nbytes=nbytes,
        )
        cluster.clock.put(work, [tensor.allocation.last_write])
    into.allocation.last_write = work
    happens_before.launched(work, [tensor], [into])


def to_host(
    cluster: Cluster, tensor: SimTensor, target: torch.Tensor | None = None, non_blocking: bool = False
) -> None:
    """Copy a tensor to the host: to ``target``, or (None) to new memory, which is pageable."""
    pinned = target is not None and is_pinned(target)
    work = _over_host_link(cluster, tensor, tensor.nbytes, pinned, non_blocking, out=True)
    cluster.clock.put(work, [tensor.allocation.last_write])
    happens_before.launched(work, [tensor], [], pinned=None if work.host_waits else target)


def from_host(cluster: Cluster, source: torch.Tensor, into: SimTensor, non_blocking: bool = False) -> None:
    """Copy a CPU tensor into one on a GPU."""
    work = _over_host_link(cluster, into, source.nbytes, is_pinned(source), non_blocking, out=False)
    cluster.clock.put(work)
    into.allocation.last_write = work
    # From pageable memory the host may go on when the driver has the bytes, and they are not on the GPU yet.
    pinned_source = None if work.host_waits else source
    happens_before.launched(work, [], [into], host_waits=not non_blocking, pinned=pinned_source)


def _over_host_link(
    cluster: Cluster, tensor: SimTensor, nbytes: int, pinned: bool, non_blocking: bool, out: bool
) -> Work:
    """A copy between the host and the GPU of the tensor."""
    gpu = cluster.gpus[tensor.gpu]
    link = gpu.model.host.for_copies()
    if not pinned:
        link = replace(link, bytes_per_s=min(link.bytes_per_s, gpu.model.pageable_bytes_per_s))
    return Work(
        name="copy to host" if out else "copy from host",
        phase=COMMUNICATION,
        place=f"{gpu.name} → host" if out else f"host → {gpu.name}",
        seconds=point_to_point(nbytes, link),
        gpus=gpu.alone,
        queues=(cluster.current_stream(gpu.index),),
        ports=(gpu.host_out if out else gpu.host_in,),
        host_waits=not (non_blocking and pinned),
        nbytes=nbytes,
    )


def to(tensor: SimTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``tensor.to(...)``, with all that torch takes as its arguments."""
    if args and isinstance(args[0], torch.Tensor):
        other, *rest = args
        return to(tensor, other.device, other.dtype, *rest, **kwargs)
    most = 2 if args and isinstance(args[0], torch.dtype) else 3  # (device, dtype, non_blocking, copy)
    copy = kwargs.pop("copy", args[most] if len(args) > most else False)
    args = args[:most]
    device, dtype, _, memory_format = parse_to(*args, **kwargs)
    kept: dict[str, Any] = {} if memory_format is None else {"memory_format": memory_format}
    result: Any = tensor
    if device is not None and device.type == "simgpu":
        target = current().named(device)
        if target != tensor.gpu:
            result = ToCopy.apply(tensor, target)
    elif device is not None and device.type == "meta":
        return torch.empty_like(tensor, device="meta")
    elif device is not None:
        if dtype is not None and dtype is not tensor.dtype:
            result = torch.Tensor.to(tensor, dtype)
        return ToCopy.apply(result, None).to(device, **kept)
    if (dtype is not None and dtype is not tensor.dtype) or kept:
        return torch.Tensor.to(result, dtype or tensor.dtype, **kept)
    return result.clone() if copy and result is tensor else result


class ToCopy(torch.autograd.Function):
    """A copy to a simulated GPU, or (None) to the CPU. Its backward copies the gradient back.

    (Autograd's own would send the gradient to what C++ takes for the input's device: number 0.)
    """

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, target: int | None) -> torch.Tensor:
        ctx.source = source.gpu if isinstance(source, SimTensor) else None
        if not isinstance(source, SimTensor):
            return copy_from_host(source, target or 0)
        if target is None:
            return copy_to_host(source)
        activation = ctx.needs_input_grad[0] and not in_backward()
        return copy_to(source, target, memory.ACTIVATIONS if activation else memory.OTHER)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        here = grad.gpu if isinstance(grad, SimTensor) else None
        return ToCopy.apply(grad, ctx.source) if here != ctx.source else grad, None


def copy_to(source: SimTensor, target: int, kind: str | None = None) -> SimTensor:
    """The same numbers on another simulated GPU, without a trace in autograd."""
    cluster = current()
    check_cluster(source)
    cluster.gpus[target].memory.require(source.nbytes)
    result = new(source.raw.clone(), cluster.gpus[target], kind)
    between_gpus(cluster, source, result)
    return result


def copy_to_host(source: SimTensor, target: torch.Tensor | None = None, non_blocking: bool = False) -> torch.Tensor:
    """The same numbers on the CPU; the host waits for them, unless they go to a pinned ``target`` without."""
    cluster = current()
    check_cluster(source)
    if not cluster.numbers:
        if (values := known.values(source)) is not None:
            to_host(cluster, source, target, non_blocking)
            return values.clone()
        if cluster.unknown is not None and source.is_floating_point():
            to_host(cluster, source, target, non_blocking)
            return torch.tensor(cluster.unknown, dtype=source.dtype, device="cpu").expand(source.shape)
        raise RuntimeError(
            "this cluster keeps only shapes (numbers=False), so there are no numbers to bring to the CPU: leave "
            f"the copy out, or {cluster.way_to_numbers}"
        )
    to_host(cluster, source, target, non_blocking)
    return source.raw.detach().clone()


def copy_from_host(source: torch.Tensor, target: int) -> SimTensor:
    """The numbers of a CPU tensor on a simulated GPU."""
    cluster = current()
    cluster.gpus[target].memory.require(source.nbytes)
    raw = source.detach().clone() if cluster.numbers else torch.empty_like(source, device="meta")
    result = new(raw, cluster.gpus[target])
    from_host(cluster, source, result)
    result.from_host = True
    known.remember(result, source)
    return result


def copy_(tensor: SimTensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``tensor.copy_(source)``: a source that waits for a gradient comes by a copy that knows the way back."""
    return torch.Tensor.copy_(tensor, _beside(tensor, source), non_blocking)


def set_item(tensor: SimTensor, index: Any, source: Any) -> None:
    """``tensor[index] = source``, in the same way."""
    torch.Tensor.__setitem__(tensor, index, _beside(tensor, source))


def _beside(tensor: SimTensor, source: Any) -> Any:
    learns = isinstance(source, torch.Tensor) and source.requires_grad and torch.is_grad_enabled()
    if not learns or source.device == tensor.device or not (source.dim() or isinstance(source, SimTensor)):
        return source  # (a single number on the host needs no copy of its own)
    return source.to(tensor.device)
