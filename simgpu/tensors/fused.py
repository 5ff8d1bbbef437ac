"""Kernels that CUDA has and the CPU has not, made of the CPU's operators: each is one kernel on a simulated GPU.

Flash attention with fewer heads of keys and values than of queries, or with values of another width, and RMSNorm. They
are operators of their own (``torch.ops.simgpu``), which run on plain tensors. Their numbers are the CPU's up to
rounding.
"""

from __future__ import annotations

import torch
from torch.library import infer_schema
from torch.nn.functional import pad

aten = torch.ops.aten
flash = aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward


def _alike(query: torch.Tensor, *pairs: torch.Tensor) -> list[torch.Tensor]:
    """Keys, values and the like for every head of the queries, as wide as these."""
    times, width = query.shape[1] // pairs[0].shape[1], max(query.shape[-1], pairs[-1].shape[-1])
    repeated = [tensor.repeat_interleave(times, 1) for tensor in pairs]
    return [pad(tensor, (0, width - tensor.shape[-1])) for tensor in (query, *repeated)]


def _narrowed(wide: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The sum over the heads that share one of ``like``, and as wide as it; new memory."""
    shared = wide.unflatten(1, (like.shape[1], -1)).sum(2) if wide.shape[1] != like.shape[1] else wide
    return shared[..., : like.shape[-1]].contiguous()


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    out, sums = flash(*_alike(query, key, value), 0.0, is_causal, scale=scale)
    return out.transpose(1, 2)[..., : value.shape[-1]].contiguous().transpose(1, 2), sums


def flash_attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    sums: torch.Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    wide = _alike(query, key, value)
    grad, out = (pad(tensor, (0, wide[0].shape[-1] - tensor.shape[-1])) for tensor in (grad, out))
    grads = flash_backward(grad, *wide, out, sums, 0.0, is_causal, scale=scale)
    return _narrowed(grads[0], query), _narrowed(grads[1], key), _narrowed(grads[2], value)


def fused_rms_norm(
    x: torch.Tensor, shape: list[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    dims = list(range(x.dim() - len(shape), x.dim()))
    scale = (wide.square().mean(dims, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()
    out = wide * scale if weight is None else wide * scale * weight
    return out.to(x.dtype), scale


def fused_rms_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    shape: list[int],
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    wanted: list[bool],
) -> tuple[torch.Tensor, torch.Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    normed, weighted = x * scale, grad * scale.new_ones(()) if weight is None else grad * weight.to(scale.dtype)
    x_grad = (weighted - normed * (weighted * normed).mean(dims, keepdim=True)) * scale
    summed = list(range(x.dim() - len(shape)))
    weight_grad = (grad * normed).sum(summed) if summed else grad * normed
    return x_grad.to(x.dtype), weight_grad.to(x.dtype if weight is None else weight.dtype)


OWN = torch.ops.simgpu
_library = torch.library.Library("simgpu", "DEF")
for _kernel in (flash_attention, flash_attention_backward, fused_rms_norm, fused_rms_norm_backward):
    _library.define(_kernel.__name__ + infer_schema(_kernel, mutates_args=()))
    _library.impl(_kernel.__name__, _kernel, "CompositeExplicitAutograd")
