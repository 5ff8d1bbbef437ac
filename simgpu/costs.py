"""What one operator costs on a GPU: floating-point operations, bytes, and so seconds.

    seconds = start + max(flops / (peak · achievable share),  bytes / (bandwidth · achievable share))

This is the roofline model (Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009), with what a
kernel needs to begin and to end in front. Only matrix products, convolutions and attention count floating-point
operations: everything else is limited by memory. Bytes are counted from shapes: each input is read once and each output
is written once, with the exceptions below. ``benchmarks/simgpu_vs_published.py`` holds it against measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from simgpu._torch import suggest_memory_format
from simgpu.hardware import GPU
from simgpu.work import Kernel

aten = torch.ops.aten

READS_OWN_OUTPUT_ONLY = {aten.zero_, aten.fill_, aten.zeros_like, aten.ones_like, aten.full_like, aten.normal_}
READS_OWN_OUTPUT_ONLY |= {aten.uniform_, aten.bernoulli_, aten.rand_like, aten.randn_like, aten.exponential_}
"""They only write: what is in their input does not matter."""

READS_WHAT_IT_PICKS = {aten.copy_, aten.embedding, aten.index, aten.gather, aten.index_select, aten.slice_backward}
"""They read as many bytes as they write, and not the whole table."""

READS_TWICE = {aten.native_batch_norm, aten.native_batch_norm_backward, aten.cudnn_batch_norm}
"""Once for the statistics, once more for the result (a feature map does not fit into a GPU's caches)."""

_CONVOLUTIONS = {aten.convolution, aten.convolution_backward, aten._convolution}
_MATRICES = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1}
"""Which argument is the left matrix."""
_known: dict[tuple, Counted] = {}
MOST = 100_000  # answers that are kept: a program with ever new shapes must not fill the memory

TILE = 128
"""Products are computed in tiles of 128 × 128 results, each by one streaming multiprocessor."""
TILE_S = 3.5e-6
"""What a tile costs besides its sums, in seconds: to fetch the first numbers and to write the result. Calibrated."""
SHORTEST_SUM = 512
"""Where there are fewer tiles than multiprocessors, several share the sums of a tile, each at least so many terms."""


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


@dataclass(frozen=True, slots=True)
class Counted:
    """What an operator multiplies.

    Args:
        flops: floating-point operations.
        products: of matrices, each as (how many, rows, columns, terms of each sum); () for attention.
    """

    flops: int
    products: tuple[tuple[int, int, int, int], ...] = ()


NOTHING = Counted(0)


def counted(packet: Any, args: tuple, kwargs: dict, out: Any) -> Counted:
    """What one call multiplies; ``NOTHING`` for operators that memory limits."""
    if packet not in COUNTED:
        return NOTHING
    key = (packet, *(_key(arg) for arg in args), *((name, _key(arg)) for name, arg in kwargs.items()))
    known = _known.get(key)
    if known is None:
        known = Counted(_count(packet, args, kwargs, out), _products(packet, args, out))
        if len(_known) < MOST:
            _known[key] = known
    return known


def _products(packet: Any, args: tuple, out: Any) -> tuple[tuple[int, int, int, int], ...]:
    if packet in _MATRICES:
        left, right = (arg.shape for arg in args[_MATRICES[packet] :][:2])
        return ((left[0] if len(left) == 3 else 1, left[-2], right[-1], left[-1]),)
    if packet not in _CONVOLUTIONS:
        return ()
    backward = packet is aten.convolution_backward
    images, weight, result = (args[1], args[2], args[0]) if backward else (args[0], args[1], out)
    groups = args[9 if backward else 8]
    places, filters = result.shape[0] * math.prod(result.shape[2:]), weight.shape[0] // groups
    terms = math.prod(weight.shape[1:])
    if not backward:
        return ((groups, places, filters, terms),)
    incoming = images.shape[0] * math.prod(images.shape[2:])
    taps = math.prod(weight.shape[2:])
    of_input = (groups, incoming, weight.shape[1], filters * taps * places // incoming)
    of_weight = (groups, filters, terms, places)
    return tuple(one for one, wanted in zip((of_input, of_weight), args[10], strict=False) if wanted)


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


def settings() -> tuple[bool, str]:
    """Those of torch on which ``kind_of_number`` depends."""
    return torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()


def layout_bytes(packet: Any, inputs: Sequence[torch.Tensor], outputs: Iterable[torch.Tensor]) -> int:
    """Bytes moved to bring feature maps into the layout that tensor cores need, and back.

    cuDNN's convolutions for tensor cores want channels last. Maps ``[batch, channels, height, width]`` in torch's usual
    layout are converted on the way in and on the way out, each read and written once more.
    """
    if packet not in _CONVOLUTIONS or suggest_memory_format(inputs[0]) is not torch.contiguous_format:
        return 0
    backward = packet is aten.convolution_backward
    incoming = inputs[:2] if backward else inputs[:1]  # backward: the gradient and the input
    maps = [*incoming, *list(outputs)[:1]]
    return 2 * sum(_touched(tensor) for tensor in maps if tensor.dim() == inputs[0].dim())


def kernel(gpu: GPU, work: Counted, kind: str, nbytes: int, layout: int = 0) -> Kernel:
    """What one kernel takes on ``gpu`` (see above), with ``layout`` bytes moved before and after it."""
    compute = 0.0
    if work.flops:
        cores = gpu.on_tensor_cores(kind)
        rate = gpu.peak_flops(kind) * (gpu.achievable_flops if cores else gpu.achievable_fp32 or gpu.achievable_flops)
        tiled = work.products and gpu.multiprocessors
        unaligned = gpu.unaligned if cores and kind not in ("tf32", "fp32") else 1
        compute = work.flops / rate
        if tiled:
            compute = sum(_product_seconds(gpu, rate, unaligned, *one) for one in work.products)
    return Kernel(gpu.kernel_s, compute, _memory_seconds(gpu, nbytes), _memory_seconds(gpu, layout))


def _memory_seconds(gpu: GPU, nbytes: int) -> float:
    return nbytes / (gpu.memory_bytes_per_s * gpu.achievable_bandwidth)


def _product_seconds(gpu: GPU, rate: float, unaligned: float, count: int, rows: int, columns: int, terms: int) -> float:
    """Tiles go over the multiprocessors in waves. The last wave may leave some of them idle."""
    if rows % 8 or columns % 8 or terms % 8:
        rate /= unaligned
    half = TILE // 2  # there are smaller tiles for the edges
    tiles = count * math.ceil(rows / half) * math.ceil(columns / half) / 4
    sharing = max(1, min(int(gpu.multiprocessors / tiles), terms // SHORTEST_SUM))
    waves = math.ceil(tiles * sharing / gpu.multiprocessors)
    return waves * (2 * TILE**2 * terms / sharing / (rate / gpu.multiprocessors) + TILE_S)
