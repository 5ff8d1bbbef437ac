"""How long a kernel takes on a GPU, from what it multiplies and moves (``simgpu.time.counting``).

    seconds = start + max(flops / (peak · achievable share),  bytes / (bandwidth · achievable share))

This is the roofline model (Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009), with what a
kernel needs to begin and to end in front. Products take their time tile by tile, never faster than the board's power
allows (``GPU.products_share``).

What kernels other than copies reach of the bandwidth was measured on one H100 (``benchmarks/measured``), and is taken
to be the same part of what copies reach on every GPU. ``benchmarks/operators.py`` holds each operator against that
H100, ``benchmarks/simgpu_vs_published.py`` whole steps against what others measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from simgpu.hardware import GPU
from simgpu.time.work import Kernel

TRANSPOSES = 0.63
"""Copies into another order of the dimensions (channels last, and back) reach this part of the bandwidth."""
_H100_MULTIPROCESSORS, _H100_COPIES = 132 * 1.98e9, 2.91e12
"""What is slow for another reason than memory takes the time of multiprocessors: with more of them it is faster."""

TILE = 128
"""Products are computed in tiles of 128 × 128 results, each by one streaming multiprocessor."""
TILE_CYCLES = 2950
"""Of a multiprocessor's clock: what a tile needs besides its sums, to begin and to write its results. Measured."""
SHORTEST_SUM = 512
"""Where there are fewer tiles than multiprocessors, several share the sums of a tile, each at least so many terms."""
NARROW_ATTENTION = 0.64
"""Heads of 64 reach 0.82 of what heads of 128 reach, others in between or less: this is where the line begins."""
ATTENTION_IN_FP32 = 0.75
"""Of what products in fp32 reach: attention has no kernels of its own for them."""


class Product(NamedTuple):
    """So many products of a matrix [rows, terms] and one [terms, columns]; bytes to which all their rows align."""

    many: int
    rows: int
    columns: int
    terms: int
    align: int = 16


class Attention(NamedTuple):
    """Tiles of 128 queries: how many, operations of each, its keys, width of a head, starts (see above)."""

    tiles: int
    flops: float
    keys: int
    width: int
    starts: int


@dataclass(slots=True)
class Cost:
    """What one call of an operator needs of a GPU.

    Args:
        read, written: bytes of its memory.
        share: the part of copies' bandwidth that it reaches.
        elements_ps: picoseconds that its elements need on an H100, however few bytes they have.
        layout: bytes moved before and after it, in kernels of their own, if tensor cores multiply.
        flops: floating-point operations.
        dtype: of the numbers that it multiplies.
        convolves: it is a convolution.
        products: of matrices.
        attention: in one kernel.
        alone_ps: picoseconds on an H100's ordinary cores, which is where depthwise convolutions run.
    """

    read: int
    written: int = 0
    share: float = 1.0
    elements_ps: float = 0.0
    layout: int = 0
    flops: int = 0
    dtype: torch.dtype = torch.float32
    convolves: bool = False
    products: tuple[Product, ...] = ()
    attention: Attention | None = None
    alone_ps: float = 0.0


def kind_of_number(cost: Cost) -> str:
    """Which of a GPU's rates products get, with torch's settings for TF32 on CUDA; "" for what multiplies nothing.

    As on CUDA, convolutions in fp32 may use TF32 by default and matrix products may not
    (``torch.backends.cudnn.allow_tf32``, ``torch.set_float32_matmul_precision``).
    """
    if not cost.flops:
        return ""
    if cost.dtype is torch.float32:
        if cost.convolves:
            return "tf32" if torch.backends.cudnn.allow_tf32 else "fp32"
        return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return str(cost.dtype)


def settings() -> tuple[bool, str]:
    """Those of torch on which ``kind_of_number`` depends."""
    return torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()


def kernel(gpu: GPU, cost: Cost) -> Kernel:
    """What one kernel takes on ``gpu`` (see above)."""
    kind = kind_of_number(cost)
    cores = gpu.on_tensor_cores(kind) if cost.flops else False
    layout = cost.layout if cost.products and cores else 0
    spread = _H100_MULTIPROCESSORS / (gpu.multiprocessors * gpu.clock_hz) if gpu.multiprocessors else 0.0
    nbytes = cost.read + cost.written
    memory = max(
        _memory_seconds(gpu, nbytes),
        cost.elements_ps * 1e-12 * spread,
        nbytes / cost.share / _H100_COPIES * (spread if cost.share < 1 else 0),
    )
    return Kernel(
        begin_s=gpu.kernel_s * max(1, len(cost.products)),
        compute_s=_compute_seconds(gpu, cost, kind, cores, spread) if cost.flops else 0.0,
        memory_s=memory,
        layout_s=max(_memory_seconds(gpu, layout), layout / TRANSPOSES / _H100_COPIES * spread),
        dtype=kind.removeprefix("torch."),
        flops=cost.flops,
        nbytes=nbytes + layout,
    )


def _compute_seconds(gpu: GPU, cost: Cost, kind: str, cores: bool, spread: float) -> float:
    rate = gpu.peak_flops(kind) * (gpu.products_share if cores else gpu.achievable_fp32 or gpu.achievable_flops)
    if cost.attention is not None:
        rate = gpu.peak_flops(kind) * gpu.attention_share if cores else rate * ATTENTION_IN_FP32
    if not gpu.multiprocessors:
        return cost.flops / rate
    if cost.attention is not None:
        return _attention_seconds(gpu, rate, cost.attention)
    return sum(_product_seconds(gpu, rate, cores, each) for each in cost.products) + cost.alone_ps * 1e-12 * spread


def _memory_seconds(gpu: GPU, nbytes: float) -> float:
    return nbytes / (gpu.memory_bytes_per_s * gpu.achievable_bandwidth)


def _sharing(gpu: GPU, tiles: float, terms: int) -> float:
    """How many multiprocessors share the sums of a tile, where there are enough for that."""
    return max(1, min(int(gpu.multiprocessors / tiles), terms // SHORTEST_SUM))


def _product_seconds(gpu: GPU, rate: float, cores: bool, product: Product) -> float:
    """Tiles go over the multiprocessors in waves. The last wave may leave some of them idle."""
    if cores and product.align < 16:
        rate /= gpu.unaligned if product.align < 4 else max(1.0, gpu.unaligned / 2)
    half = TILE // 2  # there are smaller tiles for the edges
    tiles = product.many * math.ceil(product.rows / half) * math.ceil(product.columns / half) / 4
    if not tiles:
        return 0.0
    sharing = _sharing(gpu, tiles, product.terms)
    waves = math.ceil(tiles * sharing / gpu.multiprocessors)
    start = TILE_CYCLES / gpu.clock_hz
    return waves * (2 * TILE**2 * product.terms / sharing / (rate / gpu.multiprocessors) + start)


def _attention_seconds(gpu: GPU, rate: float, work: Attention) -> float:
    """Tiles of queries follow one another on each multiprocessor; with few of them several share the keys."""
    if not work.tiles:
        return 0.0
    rate *= min(1.0, NARROW_ATTENTION + (1 - NARROW_ATTENTION) * work.width / TILE)
    sharing = _sharing(gpu, work.tiles, work.keys)
    start = work.starts * TILE_CYCLES / gpu.clock_hz
    each = work.flops / sharing / (rate / gpu.multiprocessors) + start
    return max(1.0, work.tiles * sharing / gpu.multiprocessors) * each
