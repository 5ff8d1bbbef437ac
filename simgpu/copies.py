"""A simulated tensor goes to another device: the copies, with and without a trace in autograd."""

from __future__ import annotations

from typing import Any

import torch

from simgpu import known, memory, transfers
from simgpu._torch import parse_to
from simgpu.cluster import current
from simgpu.phases import in_backward
from simgpu.tensor import SimTensor, check_cluster, new


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
    transfers.between_gpus(cluster, source, result)
    return result


def copy_to_host(source: SimTensor, target: torch.Tensor | None = None, non_blocking: bool = False) -> torch.Tensor:
    """The same numbers on the CPU; the host waits for them, unless they go to a pinned ``target`` without."""
    cluster = current()
    check_cluster(source)
    if not cluster.numbers:
        if (values := known.values(source)) is not None:
            transfers.to_host(cluster, source, target, non_blocking)
            return values.clone()
        raise RuntimeError(
            "this cluster keeps only shapes (numbers=False), so there are no numbers to bring to the CPU: leave "
            f"the copy out, or {cluster.way_to_numbers}"
        )
    transfers.to_host(cluster, source, target, non_blocking)
    return source.raw.detach().clone()


def copy_from_host(source: torch.Tensor, target: int) -> SimTensor:
    """The numbers of a CPU tensor on a simulated GPU."""
    cluster = current()
    cluster.gpus[target].memory.require(source.nbytes)
    raw = source.detach().clone() if cluster.numbers else torch.empty_like(source, device="meta")
    result = new(raw, cluster.gpus[target])
    transfers.from_host(cluster, source, result)
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


def connect() -> None:
    """What ``SimTensor`` has of this module."""
    for name, method in {"to": to, "copy_": copy_, "__setitem__": set_item}.items():
        setattr(SimTensor, name, method)
