"""What one operator costs on a GPU: floating-point operations, bytes, and so seconds.

    seconds = max(flops / (peak · achievable share),  bytes / (bandwidth · achievable share),  shortest kernel)

This is the roofline model (Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009). Only matrix
products, convolutions and attention count floating-point operations: everything else is limited by memory. Bytes
are counted from shapes: each input is read once and each output is written once, with the exceptions below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from utils.simgpu.hardware import GPU

aten = torch.ops.aten

READS_OWN_OUTPUT_ONLY = {aten.zero_, aten.fill_, aten.zeros_like, aten.ones_like, aten.full_like, aten.normal_}
READS_OWN_OUTPUT_ONLY |= {aten.uniform_, aten.bernoulli_, aten.rand_like, aten.randn_like, aten.exponential_}
"""They only write: what is in their input does not matter."""

READS_WHAT_IT_PICKS = {aten.embedding, aten.index, aten.gather, aten.index_select, aten.slice_backward}
"""They read as many bytes as they write, and not the whole table."""

READS_TWICE = {aten.native_batch_norm, aten.native_batch_norm_backward, aten.cudnn_batch_norm}
"""Once for the statistics, once more for the result (a feature map does not fit into a GPU's caches)."""

_CONVOLUTIONS = {aten.convolution, aten.convolution_backward, aten._convolution}
_flops: dict[tuple, int] = {}


def _attention_flops(query: Any, key: Any, value: Any, causal: bool, products: int) -> int:
    """FLOP of attention: two matrix products forward, five backward (flash attention computes one again).

    Args:
        query, key, value: shapes ``[batch, heads, tokens, width]``.
        causal: half of the products is not needed; flash attention skips it.
    """
    batch, heads, tokens, width = query
    full = 2 * batch * heads * tokens * key[-2] * width * products
    return full // 2 if causal else full


def _count(packet: Any, args: tuple, kwargs: dict, out: Any) -> int:
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        causal = args[4] if len(args) > 4 else kwargs.get("is_causal", False)
        return _attention_flops(args[0].shape, args[1].shape, args[2].shape, causal, products=2)
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        causal = args[7] if len(args) > 7 else kwargs.get("is_causal", False)
        return _attention_flops(args[1].shape, args[2].shape, args[3].shape, causal, products=5)
    return flop_registry[packet](*args, **kwargs, out_val=out)


COUNTED = set(flop_registry) | {
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
}
"""Operators whose floating-point operations are counted (by torch.utils.flop_counter, and attention above)."""


def flops(packet: Any, args: tuple, kwargs: dict, out: Any) -> int:
    """Floating-point operations of one call; 0 for operators that memory limits."""
    if packet not in COUNTED:
        return 0
    key = (packet, *(_key(arg) for arg in args), *((name, _key(arg)) for name, arg in kwargs.items()))
    known = _flops.get(key)
    if known is None:
        known = _flops[key] = _count(packet, args, kwargs, out)
    return known


def _key(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return arg.shape
    return tuple(arg) if isinstance(arg, list) else arg


def traffic(packet: Any, inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor]) -> int:
    """Bytes that one call reads and writes in the GPU's memory."""
    written = sum(_touched(tensor) for tensor in outputs)
    if packet in READS_OWN_OUTPUT_ONLY:
        return written
    if packet in READS_WHAT_IT_PICKS:
        return 2 * written
    read = sum(_touched(tensor) for tensor in inputs)
    return written + (2 * read if packet in READS_TWICE else read)


def _touched(tensor: torch.Tensor) -> int:
    """Bytes of a tensor, counting only once what an expanded tensor repeats."""
    if 0 in tensor.stride() and tensor.numel():
        shape_and_stride = zip(tensor.shape, tensor.stride(), strict=True)
        return tensor.itemsize * math.prod(size for size, stride in shape_and_stride if stride)
    return tensor.nbytes


def kind_of_number(packet: Any, dtype: torch.dtype) -> str:
    """Which of a GPU's rates a matrix product in ``dtype`` gets, with torch's settings for TF32 on CUDA.

    As on CUDA, convolutions in fp32 may use TF32 by default and matrix products may not
    (``torch.backends.cudnn.allow_tf32``, ``torch.set_float32_matmul_precision``).
    """
    if dtype is torch.float32:
        if packet in _CONVOLUTIONS:
            return "tf32" if torch.backends.cudnn.allow_tf32 else "fp32"
        return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return str(dtype)


def seconds(gpu: GPU, flop: int, kind: str, nbytes: int) -> float:
    """Time of one kernel on ``gpu`` (see above)."""
    compute = flop / (gpu.peak_flops(kind) * gpu.achievable_flops) if flop else 0.0
    move = nbytes / (gpu.memory_bytes_per_s * gpu.achievable_bandwidth)
    return max(compute, move, gpu.kernel_s)
