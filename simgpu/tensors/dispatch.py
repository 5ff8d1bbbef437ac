"""Where operators come in. Most run as they are; here are those that move data between devices, or need numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._torch import packet_of
from simgpu.cluster import current
from simgpu.tensors import attention, copies, known
from simgpu.tensors.copies import copy_to_host
from simgpu.tensors.operators import run
from simgpu.tensors.placement import moved_if_guessed
from simgpu.tensors.tensor import SimTensor, check_cluster, take_over_shape

aten = torch.ops.aten


def _to_copy(func: Any, args: tuple, kwargs: dict) -> Any:
    """A new type or layout; or a copy to the CPU. (Copies between simulated GPUs come through ``SimTensor.to``.)"""
    device = kwargs.get("device")
    kept = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory", "non_blocking")}
    if device is None or torch.device(device).type == "simgpu":
        return run(func, args, kept)
    source = args[0] if kwargs.get("dtype") in (None, args[0].dtype) else run(func, args, kept)
    if torch.device(device).type == "meta":
        return torch.empty_like(source.raw, device="meta")
    return copy_to_host(source).to(device, memory_format=kwargs.get("memory_format") or torch.preserve_format)


def _copy_(func: Any, args: tuple, kwargs: dict) -> Any:
    target, source, *_ = args
    cluster = current()
    non_blocking = bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking"))
    if not isinstance(target, SimTensor):
        return target.copy_(copy_to_host(source, target, non_blocking))
    if not isinstance(source, SimTensor):
        check_cluster(target)
        if cluster.numbers:
            target.raw.copy_(source)
        known.remember(target, source)
        copies.from_host(cluster, source, target, non_blocking)
        return target
    if moved_if_guessed(target, source.allocation.memory):
        return run(func, args, kwargs)
    check_cluster(source)
    check_cluster(target)
    target.raw.copy_(source.raw)
    copies.between_gpus(cluster, source, target)
    return target


def _item(func: Any, args: tuple, kwargs: dict) -> Any:
    (tensor,) = args
    check_cluster(tensor)
    cluster = current()
    values = known.values(tensor)
    if not cluster.numbers and values is None:
        if cluster.unknown is not None:
            copies.to_host(cluster, tensor)
            return cluster.unknown
        raise RuntimeError(
            "this cluster keeps only shapes (numbers=False), so no tensor has a value to read (.item(), float(), "
            f"if …): leave it out, or {cluster.way_to_numbers}"
        )
    copies.to_host(cluster, tensor)
    return func(tensor.raw if values is None else values)


def _pack(func: Any, args: tuple, kwargs: dict) -> tuple[SimTensor, torch.Tensor]:
    """Of padded sequences. How many there are at each step is on the host, as are their lengths."""
    padded, lengths, batch_first = args
    if isinstance(lengths, SimTensor):
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got one on {lengths.device}")
    sizes = (lengths > torch.arange(padded.shape[int(batch_first)], device="cpu")[:, None]).sum(1)[: int(lengths[0])]
    packed = run(aten.new_zeros.default, (padded, [int(lengths.sum()), *padded.shape[2:]]), {})
    if current().numbers:
        packed.raw.copy_(func(padded.raw, lengths, batch_first)[0])
    return packed, sizes


def _conjugate(func: Any, args: tuple, kwargs: dict) -> Any:
    """Torch only marks a tensor as conjugated (or negated); the mark would be lost, so it is done at once."""
    return run(aten.conj_physical.default if packet_of(func) is aten._conj else aten.neg.default, args, kwargs)


def _nothing(func: Any, args: tuple, kwargs: dict) -> None:
    """``record_stream``, from C++, which does not know our streams."""


def _resize_(func: Any, args: tuple, kwargs: dict) -> Any:
    """Another shape in place. A smaller one keeps its memory, as on CUDA."""
    tensor = args[0]
    check_cluster(tensor)
    storage = tensor.raw.untyped_storage()
    before = storage.nbytes()
    func(tensor.raw, *args[1:], **kwargs)
    if storage.nbytes() != before:
        tensor.allocation.resize(storage.nbytes())
    take_over_shape(tensor, tensor.allocation)
    return tensor


def _refuse(func: Any, args: tuple, kwargs: dict) -> Any:
    name = packet_of(func).__name__
    raise NotImplementedError(
        f"a simulated GPU cannot do {name}, which changes a tensor's storage in place: make a new tensor instead"
    )


SPECIAL = {
    aten._to_copy: _to_copy,
    aten.copy_: _copy_,
    aten._local_scalar_dense: _item,
    aten._conj: _conjugate,
    aten._neg_view: _conjugate,
    aten._scaled_dot_product_flash_attention: attention.flash,
    aten._scaled_dot_product_flash_attention_backward: attention.flash_backward,
    aten._pack_padded_sequence: _pack,
    aten._fused_rms_norm: attention.fused_rms_norm,
    aten._fused_rms_norm_backward: attention.fused_rms_norm,
    aten.record_stream: _nothing,
    aten.resize_: _resize_,
    aten.set_: _refuse,
}

communication: dict[str, Callable[[Any, tuple, dict], Any]] = {}
"""What runs the operators of a namespace that connect this process to others: ``simgpu.join`` sets it."""


def dispatch(func: Any, args: tuple, kwargs: dict) -> Any:
    """Run one operator that has a simulated tensor among its inputs."""
    if func.namespace in communication:
        return communication[func.namespace](func, args, kwargs)
    special = SPECIAL.get(packet_of(func))
    return run(func, args, kwargs) if special is None else special(func, args, kwargs)


OTHERS = (aten.silu_backward.default, aten.mish_backward.default, aten._local_scalar_dense.default)
"""One operator on CPU and CUDA, but several for a backend that does not register it; and what ``torch.tensor([x, y])``
calls with ``__torch_dispatch__`` switched off."""


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """How ``torch.tensor([1, 2], device="simgpu:0")`` fills its result: with ``__torch_dispatch__`` switched off."""
    return dispatch(aten.copy_.default, (target, source, non_blocking), {})


def kernels() -> list[tuple[Any, Any, str]]:
    """Operators, what runs for them, and the dispatcher's key."""
    others = [(func, lambda *args, func=func: dispatch(func, args, {}), "PrivateUse1") for func in OTHERS]
    return [("_copy_from", _copy_from, "PrivateUse1"), *others]
