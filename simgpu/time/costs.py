"""What one operator costs on a GPU: floating-point operations, bytes, and so seconds.

    seconds = start + max(flops / (peak · achievable share),  bytes / (bandwidth · achievable share))

This is the roofline model (Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009), with what a
kernel needs to begin and to end in front. Only matrix products, convolutions and attention count floating-point
operations: everything else is limited by memory. Bytes are counted from shapes: each input is read once and each output
is written once, with the exceptions below. Products take their time tile by tile, never faster than the board's power
allows (``GPU.products_share``).

What kernels other than copies reach of the bandwidth was measured on one H100 (``benchmarks/measured``), and is taken
to be the same part of what copies reach on every GPU: ``SLOWER``, ``PER_ELEMENT`` and the constants beside them.
``benchmarks/operators.py`` holds each operator against that H100, ``benchmarks/simgpu_vs_published.py`` whole steps
against what others measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from simgpu._torch import suggest_memory_format
from simgpu.hardware import GPU
from simgpu.tensors.fused import OWN
from simgpu.time.work import Kernel

aten = torch.ops.aten

WRITES_ONLY = {aten.zero_, aten.fill_, aten.zeros_like, aten.ones_like, aten.full_like, aten.normal_, aten.uniform_}
WRITES_ONLY |= {aten.bernoulli_, aten.rand_like, aten.randn_like, aten.exponential_, aten.nll_loss_backward}
"""What is in their input does not matter."""

READS_WHAT_IT_PICKS = {aten.copy_, aten.embedding, aten.index, aten.gather, aten.index_select, aten.slice_backward}
READS_WHAT_IT_PICKS |= {aten.nll_loss_forward}
"""They read as many bytes as they write, and not the whole table."""

WRITES_WHAT_IT_PICKS = {aten.index_put_, aten._index_put_impl_, aten.index_copy_, aten.index_fill_, aten.index_add_}
WRITES_WHAT_IT_PICKS |= {aten.index_reduce_, aten.scatter_, aten.scatter_add_, aten.scatter_reduce_}
"""They change some rows or numbers of a table in place. (Those that add up read them first.)"""

READS_TWICE = {aten.native_batch_norm, aten.native_batch_norm_backward, aten.cudnn_batch_norm}
READS_TWICE |= {aten.native_layer_norm_backward, OWN.fused_rms_norm_backward}
"""Once for sums over it, once more for the result (a feature map does not fit into a GPU's caches)."""

_COPIES = {aten.copy_, aten._to_copy, aten.clone}
SLOWER = {
    **dict.fromkeys((aten.native_layer_norm, aten.native_layer_norm_backward), 0.69),
    **dict.fromkeys((OWN.fused_rms_norm, OWN.fused_rms_norm_backward), 0.69),
    **dict.fromkeys((aten._softmax, aten._log_softmax, aten._log_softmax_backward_data), 0.8),
    **{aten._softmax_backward_data: 0.51, aten.convolution_backward: 0.7, aten.index_add_: 0.3, aten.scatter_add_: 0.3},
    **dict.fromkeys((aten.index_put_, aten._index_put_impl_, aten.index_copy_, aten.scatter_), 0.45),
}
"""Kernels that reach a smaller part of the bandwidth than copies do, and which part: sums over rows, scattered rows."""
CONVERTS, TRANSPOSES = 0.76, 0.63
"""The same for copies into another type, and into another order of the dimensions (channels last, and back)."""
POINTWISE_CONVERTED = 0.5
"""Of the maps of 1 × 1 convolutions this part is brought into another layout. cuDNN's heuristics decide: our H100 did
so with none of three, steps that others measured from 2021 to 2024 lie between all and less than half."""

PER_ELEMENT = {
    **{aten._softmax: 3.2, aten.embedding_dense_backward: 17.0},
    **{aten.max_pool2d_with_indices: 4.1, aten.max_pool2d_with_indices_backward: 10.0},
}
"""Picoseconds for each element of their largest input, with an H100's 132 multiprocessors, however few bytes it has."""
_BATCH_NORM_PS = {torch.contiguous_format: (6.0, 8.8), torch.channels_last: (0.0, 0.0)}
_BATCH_NORM_IN_BF16_PS = (4.9, 4.3)
"""The same for batch norm, forward and backward. cuDNN's for channels last are as fast as memory; it has none for bf16.
With statistics that are known (evaluation) it takes half of the first, in any layout."""
_DEPTHWISE_PS = {torch.contiguous_format: 0.7, torch.channels_last: 0.14}
"""For each multiplication of a depthwise convolution; 1.6 times as long in backward."""
_SHORT_ROW = 1024
"""Softmax of rows up to here keeps a row in registers, and takes half as long."""
_H100_MULTIPROCESSORS, _H100_COPIES = 132 * 1.98e9, 2.91e12
"""What is slow for another reason than memory takes the time of multiprocessors: with more of them it is faster."""

_CONVOLUTIONS = {aten.convolution, aten.convolution_backward, aten._convolution}
_MATRICES = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1, aten._scaled_mm: 0}
"""Which argument is the left matrix."""
_GROUPED = {aten._grouped_mm, aten._scaled_grouped_mm}
_known: dict[tuple, Counted] = {}
MOST = 100_000
"""Calls whose operations are remembered."""

TILE = 128
"""Products are computed in tiles of 128 × 128 results, each by one streaming multiprocessor."""
TILE_CYCLES = 2950
"""Of a multiprocessor's clock: what a tile needs besides its sums, to begin and to write its results. Measured."""
SHORTEST_SUM = 512
"""Where there are fewer tiles than multiprocessors, several share the sums of a tile, each at least so many terms."""
ATTENTION_STARTS, CAUSAL_STARTS, BACKWARD_STARTS = 1, 3, 12
"""What attention needs for a tile of 128 queries besides its products, in times of ``TILE_CYCLES``. Measured."""
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


@dataclass(frozen=True, slots=True)
class Counted:
    """What an operator multiplies.

    Args:
        flops: floating-point operations.
        products: of matrices.
        attention: in one kernel.
        alone_ps: picoseconds on an H100's ordinary cores, which is where depthwise convolutions run.
    """

    flops: int
    products: tuple[Product, ...] = ()
    attention: Attention | None = None
    alone_ps: float = 0.0


NOTHING = Counted(0)


def counted(packet: Any, args: tuple, kwargs: dict, out: Any) -> Counted:
    """What one call multiplies; ``NOTHING`` for operators that memory limits."""
    count = _COUNT.get(packet)
    if count is None:
        return NOTHING
    key = (packet, *(_key(arg) for arg in args), *((name, _key(arg)) for name, arg in kwargs.items()))
    known = _known.get(key)
    if known is None:
        if len(_known) >= MOST:
            _known.clear()
        known = _known[key] = count(packet, args, kwargs, out)
    return known


def _matrices(packet: Any, args: tuple, kwargs: dict, out: torch.Tensor) -> Counted:
    left, right = args[_MATRICES[packet] :][:2]
    count = left.shape[0] if left.dim() == 3 else 1
    align = min(map(_alignment, (left, right, out)))
    one = Product(count, left.shape[-2], right.shape[-1], left.shape[-1], align)
    return Counted(2 * math.prod(one[:4]), (one,))


def _grouped(packet: Any, args: tuple, kwargs: dict, out: torch.Tensor) -> Counted:
    """Products whose rows, columns or terms are dealt out in groups: taken to be equally large."""
    left, right = args[:2]
    rows, terms, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if left.dim() == right.dim() == 2:
        count, terms = out.shape[0], math.ceil(terms / out.shape[0])
    elif left.dim() == 2:
        count, rows = right.shape[0], math.ceil(rows / right.shape[0])
    else:
        count, columns = left.shape[0], columns if right.dim() == 3 else math.ceil(columns / left.shape[0])
    flops = 2 * left.shape[-2] * left.shape[-1] * right.shape[-1] * (count if left.dim() == right.dim() == 3 else 1)
    return Counted(flops, (Product(count, rows, columns, terms, min(map(_alignment, (left, right, out)))),))


def _alignment(matrix: torch.Tensor) -> int:
    """All rows of a matrix begin at multiples of so many bytes, at most 16. (Rows, or columns if those lie in one.)"""
    if min(matrix.shape[-2:]) <= 1:
        return 16
    apart = matrix.stride(-2) if matrix.stride(-1) == 1 else matrix.stride(-1)
    return math.gcd(apart * matrix.itemsize, 16)


def _convolved(packet: Any, args: tuple, kwargs: dict, out: Any) -> Counted:
    """A convolution, a transposed one (the backward of one), or the backward of either, as products of matrices."""
    backward = packet is aten.convolution_backward
    images, weight, result = (args[1], args[2], args[0]) if backward else (args[0], args[1], out)
    transposed, groups = args[7:10:2] if backward else args[6:9:2]
    small, large = (images, result) if transposed else (result, images)
    places, all_places = (one.shape[0] * math.prod(one.shape[2:]) for one in (small, large))
    filters, channels, taps = weight.shape[0] // groups, weight.shape[1], math.prod(weight.shape[2:])
    if not (places and all_places and weight.numel()):
        return NOTHING
    sizes = (args[10] if backward else [True])[:2]
    flops = 2 * places * weight.numel() * sum(sizes)
    if channels == 1 and groups > 1:
        cudnn = images.dtype is torch.float16  # which has depthwise kernels for it: torch asks it then, in any layout
        ps = _DEPTHWISE_PS[torch.channels_last if cudnn else _map_layout(images)] * (1.6 if backward else 1)
        return Counted(flops, alone_ps=flops / 2 * ps)
    align = math.gcd(channels * images.itemsize, filters * images.itemsize, 16)
    padded = 8 * math.ceil(channels / 8)
    to_small = Product(groups, places, filters, padded * taps, align)
    to_large = Product(groups, all_places, padded, max(1, filters * taps * places // all_places), align)
    to_weight = Product(groups, filters, padded * taps, places, align)
    to_images, to_result = (to_small, to_large) if transposed else (to_large, to_small)
    wanted = (to_images, to_weight) if backward else (to_result,)
    return Counted(flops, tuple(one for one, asked in zip(wanted, sizes, strict=True) if asked))


def _attended(packet: Any, args: tuple, kwargs: dict, out: Any) -> Counted:
    """Flash attention: two matrix products forward, five backward (one is computed again). Causal: half of each."""
    backward = packet.__name__.endswith("backward")
    query, key, value = args[1:4] if backward else args[:3]
    flags = [one for one in args if isinstance(one, bool)]  # the only one of each is whether it is causal
    causal = flags[0] if flags else kwargs.get("is_causal", False)
    batch, heads, queries, width = query.shape
    keys = key.shape[-2]
    each = (6 * width + 4 * value.shape[-1]) if backward else 2 * (width + value.shape[-1])
    padded = (keys + TILE) / 2 if causal else TILE * math.ceil(keys / TILE)
    starts = BACKWARD_STARTS if backward else CAUSAL_STARTS if causal else ATTENTION_STARTS
    tiles = Attention(batch * heads * math.ceil(queries / TILE), TILE * padded * each, keys, width, starts)
    return Counted(batch * heads * queries * keys * each // (2 if causal else 1), attention=tiles)


_COUNT = {
    **dict.fromkeys(_MATRICES, _matrices),
    **dict.fromkeys(_GROUPED, _grouped),
    **dict.fromkeys(_CONVOLUTIONS, _convolved),
    **dict.fromkeys((aten._scaled_dot_product_flash_attention_for_cpu, OWN.flash_attention), _attended),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attended,
    OWN.flash_attention_backward: _attended,
}
"""Operators whose floating-point operations are counted, and how."""


def _key(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.stride(), arg.dtype
    return tuple(map(_key, arg)) if isinstance(arg, list) else arg


class Moved(NamedTuple):
    """Bytes that a call reads and writes in the GPU's memory, the part of copies' bandwidth that it reaches, and
    picoseconds that its elements need on an H100."""

    nbytes: int
    share: float = 1.0
    elements_ps: float = 0.0


def traffic(packet: Any, args: tuple, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Moved:
    """What one call moves. ``args`` are its arguments, ``inputs`` the tensors among them."""
    written = sum(map(_touched, outputs))
    read = sum(map(_touched, inputs))
    share = SLOWER.get(packet, 1.0)
    elements_ps = PER_ELEMENT.get(packet, 0.0)
    if packet in WRITES_ONLY:
        read = 0
    elif packet in READS_WHAT_IT_PICKS:
        read = written
    elif packet in WRITES_WHAT_IT_PICKS:
        table = args[0]
        written = _picked(packet, args) * table.itemsize
        sets = packet in (aten.index_copy_, aten.index_fill_, aten.scatter_) or (
            packet in _PUTS and args[3:4] != (True,)
        )
        read += (0 if sets else written) - _touched(table)
    elif packet in READS_TWICE:
        read *= 2
        if packet in _TRAINING:
            evaluating = not args[_TRAINING[packet]]
            read //= 2 if evaluating else 1
            layout = torch.contiguous_format if evaluating else _map_layout(inputs[0])
            native = layout is torch.channels_last and inputs[0].dtype is torch.bfloat16
            both = _BATCH_NORM_IN_BF16_PS if native else _BATCH_NORM_PS[layout]
            elements_ps = both[packet is aten.native_batch_norm_backward] / (2 if evaluating else 1)
    elif packet is aten.convolution_backward and all(args[10][:2]):
        read += _touched(inputs[0])  # two kernels, both of which read the gradient
    elif packet is aten._softmax and inputs[0].shape[args[1]] <= _SHORT_ROW:
        elements_ps /= 2
    if packet in _COPIES and inputs and outputs:
        source, target = inputs[-1], outputs[0]
        if source.dtype is not target.dtype:
            share = CONVERTS
        elif source.dim() == target.dim() > 1 and _innermost(source) != _innermost(target):
            share = TRANSPOSES
    if elements_ps:
        elements_ps *= max(tensor.numel() for tensor in inputs[:2])
    return Moved(written + read, share, elements_ps)


_TRAINING = {aten.native_batch_norm: 5, aten.native_batch_norm_backward: 7, aten.cudnn_batch_norm: 5}
"""Which argument says so."""
_PUTS = {aten.index_put_, aten._index_put_impl_}


def _picked(packet: Any, args: tuple) -> int:
    """How many numbers of its table (the first argument) a call of ``WRITES_WHAT_IT_PICKS`` changes."""
    table = args[0]
    if packet not in _PUTS:
        index = args[2]
        whole_rows = packet in (aten.index_copy_, aten.index_fill_, aten.index_add_, aten.index_reduce_)
        return table.numel() // max(1, table.shape[args[1]]) * index.numel() if whole_rows else index.numel()
    indices = [one for one in args[1] if one is not None]
    if any(one.dtype in (torch.bool, torch.uint8) for one in indices):
        return table.numel()  # by a mask: how many is not known
    places = math.prod(torch.broadcast_shapes(*(one.shape for one in indices)))
    rest = [size for size, index in zip(table.shape, (*args[1], *[None] * table.dim()), strict=False) if index is None]
    return places * math.prod(rest)


def _innermost(tensor: torch.Tensor) -> int:
    """Along which dimension neighbours in memory lie."""
    sizes = enumerate(zip(tensor.shape, tensor.stride(), strict=True))
    return min([(stride, -i) for i, (size, stride) in sizes if size > 1 and stride], default=(0, 0))[1]


def _touched(tensor: torch.Tensor) -> int:
    """Bytes of a tensor, counting only once what an expanded tensor repeats."""
    if 0 in tensor.stride() and tensor.numel():
        shape_and_stride = zip(tensor.shape, tensor.stride(), strict=True)
        return tensor.itemsize * math.prod(size for size, stride in shape_and_stride if stride)
    return tensor.nbytes


def _map_layout(maps: torch.Tensor) -> torch.memory_format:
    layout = suggest_memory_format(maps)
    return layout if layout is torch.contiguous_format else torch.channels_last


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


def layout_bytes(packet: Any, args: tuple, inputs: Sequence[torch.Tensor], outputs: Iterable[torch.Tensor]) -> int:
    """Bytes moved to bring feature maps into the layout that tensor cores need, and back.

    cuDNN's convolutions for tensor cores want channels last. Maps ``[batch, channels, height, width]`` in torch's usual
    layout are converted on the way in and on the way out, each read and written once more; of 1 × 1 convolutions, which
    are plain products in either layout, only a part (``POINTWISE_CONVERTED``).
    """
    if packet not in _CONVOLUTIONS or suggest_memory_format(inputs[0]) is not torch.contiguous_format:
        return 0
    backward = packet is aten.convolution_backward
    part = POINTWISE_CONVERTED if math.prod(args[2 if backward else 1].shape[2:]) == 1 else 1
    incoming = inputs[:2] if backward else inputs[:1]  # backward: the gradient and the input
    maps = [*incoming, *list(outputs)[:1]]
    return int(2 * part * sum(_touched(tensor) for tensor in maps if tensor.dim() == inputs[0].dim()))


def kernel(gpu: GPU, work: Counted, kind: str, moved: Moved, layout: int = 0) -> Kernel:
    """What one kernel takes on ``gpu`` (see above), with ``layout`` bytes moved before and after it."""
    compute = 0.0
    spread = _H100_MULTIPROCESSORS / (gpu.multiprocessors * gpu.clock_hz) if gpu.multiprocessors else 0.0
    if work.flops:
        cores = gpu.on_tensor_cores(kind)
        rate = gpu.peak_flops(kind) * (gpu.products_share if cores else gpu.achievable_fp32 or gpu.achievable_flops)
        if work.attention is not None:
            rate = gpu.peak_flops(kind) * gpu.attention_share if cores else rate * ATTENTION_IN_FP32
        compute = work.flops / rate
        if gpu.multiprocessors:
            compute = (
                sum(_product_seconds(gpu, rate, cores, one) for one in work.products) + work.alone_ps * 1e-12 * spread
            )
            if work.attention is not None:
                compute = _attention_seconds(gpu, rate, work.attention)
    memory = max(
        _memory_seconds(gpu, moved.nbytes),
        moved.elements_ps * 1e-12 * spread,
        moved.nbytes / moved.share / _H100_COPIES * (spread if moved.share < 1 else 0),
    )
    changed = max(_memory_seconds(gpu, layout), layout / TRANSPOSES / _H100_COPIES * spread)
    begin = gpu.kernel_s * max(1, len(work.products))
    nbytes = moved.nbytes + layout
    return Kernel(begin, compute, memory, changed, kind.removeprefix("torch."), work.flops, nbytes)


def _memory_seconds(gpu: GPU, nbytes: float) -> float:
    return nbytes / (gpu.memory_bytes_per_s * gpu.achievable_bandwidth)


def _sharing(gpu: GPU, tiles: float, terms: int) -> float:
    """How many multiprocessors share the sums of a tile, where there are enough for that."""
    return max(1, min(int(gpu.multiprocessors / tiles), terms // SHORTEST_SUM))


def _product_seconds(gpu: GPU, rate: float, cores: bool, one: Product) -> float:
    """Tiles go over the multiprocessors in waves. The last wave may leave some of them idle."""
    if cores and one.align < 16:
        rate /= gpu.unaligned if one.align < 4 else max(1.0, gpu.unaligned / 2)
    half = TILE // 2  # there are smaller tiles for the edges
    tiles = one.many * math.ceil(one.rows / half) * math.ceil(one.columns / half) / 4
    if not tiles:
        return 0.0
    sharing = _sharing(gpu, tiles, one.terms)
    waves = math.ceil(tiles * sharing / gpu.multiprocessors)
    start = TILE_CYCLES / gpu.clock_hz
    return waves * (2 * TILE**2 * one.terms / sharing / (rate / gpu.multiprocessors) + start)


def _attention_seconds(gpu: GPU, rate: float, work: Attention) -> float:
    """Tiles of queries follow one another on each multiprocessor; with few of them several share the keys."""
    if not work.tiles:
        return 0.0
    rate *= min(1.0, NARROW_ATTENTION + (1 - NARROW_ATTENTION) * work.width / TILE)
    sharing = _sharing(gpu, work.tiles, work.keys)
    start = work.starts * TILE_CYCLES / gpu.clock_hz
    each = work.flops / sharing / (rate / gpu.multiprocessors) + start
    return max(1.0, work.tiles * sharing / gpu.multiprocessors) * each
