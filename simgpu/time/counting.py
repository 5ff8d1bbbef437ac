"""What a call of each operator multiplies and moves: floating-point operations, and bytes of the GPU's memory.

Bytes are counted from shapes: each input is read once and each output is written once. Operators that need something
else have a function here, registered with ``@cost``, whose parameters are the operator's arguments by the names of its
schema (and ``inputs``, ``outputs``: the tensors that it reads and makes; ``operator``: which it is); it changes the
``Cost`` that it is given. Only matrix products, convolutions and attention count floating-point operations: everything
else is limited by memory. The parts of the bandwidth that kernels reach, and times for elements, were measured on an
H100.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from simgpu._torch import suggest_memory_format
from simgpu.tensors.fused import OWN
from simgpu.tensors.schemas import Call, tensors_in
from simgpu.time.costs import TILE, TRANSPOSES, Attention, Cost, Product

aten = torch.ops.aten
Tensors = Sequence[torch.Tensor]

SLOWER = {
    **dict.fromkeys((aten.native_layer_norm, aten.native_layer_norm_backward), 0.69),
    **dict.fromkeys((OWN.fused_rms_norm, OWN.fused_rms_norm_backward), 0.69),
    **dict.fromkeys((aten._softmax, aten._log_softmax, aten._log_softmax_backward_data), 0.8),
    **{aten._softmax_backward_data: 0.51, aten.convolution_backward: 0.7, aten.index_add_: 0.3, aten.scatter_add_: 0.3},
    **dict.fromkeys((aten.index_put_, aten._index_put_impl_, aten.index_copy_, aten.scatter_), 0.45),
}
"""Kernels that reach a smaller part of the bandwidth than copies do, and which part: sums over rows, scattered rows."""
CONVERTS = 0.76
"""The same for copies into another type."""
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
ATTENTION_STARTS, CAUSAL_STARTS, BACKWARD_STARTS = 1, 3, 12
"""What attention needs for a tile of 128 queries besides its products, in times of ``TILE_CYCLES``. Measured."""


class _Count(NamedTuple):
    """What counts an operator's calls, the names of its parameters, and whether equal calls are remembered."""

    function: Callable[..., None]
    parameters: tuple[str, ...]
    remembered: bool


_COUNTS: dict[Any, _Count] = {}
_remembered: dict[tuple, Cost] = {}
MOST = 100_000
"""Calls that are remembered."""


def cost(
    *operators: Any, remembered: bool = False, **called: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register what counts the calls of these operators. ``called``: how their schemas call some of its parameters."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        _, *parameters = (called.get(name, name) for name in inspect.signature(function).parameters)
        _COUNTS.update(dict.fromkeys(operators, _Count(function, tuple(parameters), remembered)))
        return function

    return register


def cost_of(call: Call, out: Any) -> Cost:
    """What one call costs that returns ``out``."""
    packet = call.operator.packet
    count = _COUNTS.get(packet)
    if count is None or not count.remembered:
        return _counted(call, out, count)
    key = (packet, *map(_key, call.args), *((name, _key(arg)) for name, arg in call.kwargs.items()))
    known = _remembered.get(key)
    if known is None:
        if len(_remembered) >= MOST:
            _remembered.clear()
        known = _remembered[key] = _counted(call, out, count)
    return known


def _counted(call: Call, out: Any, count: _Count | None) -> Cost:
    outputs = tensors_in(out) or tensors_in(call.changed)  # lists in place: nothing is returned
    into = call.kwargs.get("out")  # only written
    inputs = call.inputs if into is None else [tensor for tensor in call.inputs if tensor is not into]
    packet = call.operator.packet
    made = Cost(
        read=sum(map(_touched, inputs)),
        written=sum(map(_touched, outputs)),
        share=SLOWER.get(packet, 1.0),
        elements_ps=PER_ELEMENT.get(packet, 0.0),
    )
    if count is not None:
        values = {"inputs": inputs, "outputs": outputs, "operator": packet, **call.values()}
        count.function(made, *(values[name] for name in count.parameters))
        if made.flops:
            made.dtype = call.inputs[0].dtype
    if made.elements_ps:
        made.elements_ps *= max(tensor.numel() for tensor in inputs[:2])
    return made


def _key(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.stride(), arg.dtype
    return tuple(map(_key, arg)) if isinstance(arg, list) else arg


def _touched(tensor: torch.Tensor) -> int:
    """Bytes of a tensor, counting only once what an expanded tensor repeats."""
    if 0 in tensor.stride() and tensor.numel():
        shape_and_stride = zip(tensor.shape, tensor.stride(), strict=True)
        return tensor.itemsize * math.prod(size for size, stride in shape_and_stride if stride)
    return tensor.nbytes


# --- Products -----------------------------------------------------------------------------------------------


@cost(aten.mm, aten.bmm, aten._scaled_mm, remembered=True)
@cost(aten.addmm, remembered=True, self="mat1")
@cost(aten.baddbmm, remembered=True, self="batch1", mat2="batch2")
def _mm(cost: Cost, self: torch.Tensor, mat2: torch.Tensor, outputs: Tensors) -> None:
    many = self.shape[0] if self.dim() == 3 else 1
    align = min(map(_alignment, (self, mat2, outputs[0])))
    product = Product(many, self.shape[-2], mat2.shape[-1], self.shape[-1], align)
    cost.flops, cost.products = 2 * math.prod(product[:4]), (product,)


@cost(aten._grouped_mm, aten._scaled_grouped_mm, remembered=True)
def _grouped_mm(cost: Cost, self: torch.Tensor, mat2: torch.Tensor, outputs: Tensors) -> None:
    """Products whose rows, columns or terms are dealt out in groups: taken to be equally large."""
    rows, terms, columns = self.shape[-2], self.shape[-1], mat2.shape[-1]
    cost.flops = 2 * rows * terms * columns
    if self.dim() == mat2.dim() == 2:
        groups = outputs[0].shape[0]
        terms = math.ceil(terms / groups)
    elif self.dim() == 2:
        groups = mat2.shape[0]
        rows = math.ceil(rows / groups)
    elif mat2.dim() == 2:
        groups = self.shape[0]
        columns = math.ceil(columns / groups)
    else:
        groups = self.shape[0]
        cost.flops *= groups
    cost.products = (Product(groups, rows, columns, terms, min(map(_alignment, (self, mat2, outputs[0])))),)


def _alignment(matrix: torch.Tensor) -> int:
    """All rows of a matrix begin at multiples of so many bytes, at most 16. (Rows, or columns if those lie in one.)"""
    if min(matrix.shape[-2:]) <= 1:
        return 16
    apart = matrix.stride(-2) if matrix.stride(-1) == 1 else matrix.stride(-1)
    return math.gcd(apart * matrix.itemsize, 16)


@cost(aten.convolution, aten._convolution, remembered=True)
def _convolution(
    cost: Cost, input: torch.Tensor, weight: torch.Tensor, transposed: bool, groups: int, outputs: Tensors
) -> None:
    _convolve(cost, input, weight, outputs[0], transposed, groups)
    cost.layout = _layout_bytes(weight, [input, outputs[0]])


@cost(aten.convolution_backward, remembered=True)
def _convolution_backward(
    cost: Cost,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    transposed: bool,
    groups: int,
    output_mask: Sequence[bool],
    outputs: Tensors,
) -> None:
    wanted = output_mask[:2]
    _convolve(cost, input, weight, grad_output, transposed, groups, wanted)
    cost.layout = _layout_bytes(weight, [grad_output, input, *outputs[:1]])
    if all(wanted):
        cost.read += _touched(grad_output)  # two kernels, both of which read it


def _convolve(
    cost: Cost,
    images: torch.Tensor,
    weight: torch.Tensor,
    result: torch.Tensor,
    transposed: bool,
    groups: int,
    wanted: Sequence[bool] | None = None,
) -> None:
    """A convolution, a transposed one (the backward of one), or the backward of either, as products of matrices.

    Args:
        wanted: backward, of the images and of the weight. None: forward.
    """
    cost.convolves = True
    small, large = (images, result) if transposed else (result, images)
    places, all_places = (maps.shape[0] * math.prod(maps.shape[2:]) for maps in (small, large))
    filters, channels, taps = weight.shape[0] // groups, weight.shape[1], math.prod(weight.shape[2:])
    if not (places and all_places and weight.numel()):
        return
    cost.flops = 2 * places * weight.numel() * (1 if wanted is None else sum(wanted))
    if channels == 1 and groups > 1:
        cudnn = images.dtype is torch.float16  # which has depthwise kernels for it: torch asks it then, in any layout
        ps = _DEPTHWISE_PS[torch.channels_last if cudnn else _map_layout(images)] * (1 if wanted is None else 1.6)
        cost.alone_ps = cost.flops / 2 * ps
        return
    align = math.gcd(channels * images.itemsize, filters * images.itemsize, 16)
    padded = 8 * math.ceil(channels / 8)
    to_small = Product(groups, places, filters, padded * taps, align)
    to_large = Product(groups, all_places, padded, max(1, filters * taps * places // all_places), align)
    to_weight = Product(groups, filters, padded * taps, places, align)
    to_images, to_result = (to_small, to_large) if transposed else (to_large, to_small)
    if wanted is None:
        cost.products = (to_result,)
    else:
        backward = zip((to_images, to_weight), wanted, strict=True)
        cost.products = tuple(product for product, asked in backward if asked)


def _layout_bytes(weight: torch.Tensor, maps: Tensors) -> int:
    """Bytes moved to bring feature maps into the layout that tensor cores need, and back.

    cuDNN's convolutions for tensor cores want channels last. Maps ``[batch, channels, height, width]`` in torch's usual
    layout are converted on the way in and on the way out, each read and written once more; of 1 × 1 convolutions, which
    are plain products in either layout, only a part (``POINTWISE_CONVERTED``).
    """
    if suggest_memory_format(maps[0]) is not torch.contiguous_format:
        return 0
    part = POINTWISE_CONVERTED if math.prod(weight.shape[2:]) == 1 else 1
    return int(2 * part * sum(_touched(tensor) for tensor in maps if tensor.dim() == maps[0].dim()))


def _map_layout(maps: torch.Tensor) -> torch.memory_format:
    layout = suggest_memory_format(maps)
    return layout if layout is torch.contiguous_format else torch.channels_last


@cost(aten._scaled_dot_product_flash_attention_for_cpu, OWN.flash_attention, remembered=True)
def _attention(cost: Cost, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool) -> None:
    """Flash attention: two matrix products."""
    starts = CAUSAL_STARTS if is_causal else ATTENTION_STARTS
    _attend(cost, query, key, is_causal, 2 * (query.shape[-1] + value.shape[-1]), starts)


@cost(aten._scaled_dot_product_flash_attention_for_cpu_backward, OWN.flash_attention_backward, remembered=True)
def _attention_backward(
    cost: Cost, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool
) -> None:
    """Five matrix products: one is computed again."""
    _attend(cost, query, key, is_causal, 6 * query.shape[-1] + 4 * value.shape[-1], BACKWARD_STARTS)


def _attend(cost: Cost, query: torch.Tensor, key: torch.Tensor, causal: bool, pair: int, starts: int) -> None:
    """``pair``: operations for a query and a key. Causal: half of them."""
    batch, heads, queries, width = query.shape
    keys = key.shape[-2]
    padded = (keys + TILE) / 2 if causal else TILE * math.ceil(keys / TILE)
    cost.flops = batch * heads * queries * keys * pair // (2 if causal else 1)
    cost.attention = Attention(batch * heads * math.ceil(queries / TILE), TILE * padded * pair, keys, width, starts)


# --- What memory limits -------------------------------------------------------------------------------------


@cost(
    *(aten.zero_, aten.fill_, aten.zeros_like, aten.ones_like, aten.full_like, aten.normal_, aten.uniform_),
    *(aten.bernoulli_, aten.rand_like, aten.randn_like, aten.exponential_, aten.nll_loss_backward),
)
def _writes_only(cost: Cost) -> None:
    """What is in their input does not matter."""
    cost.read = 0


@cost(aten.embedding, aten.index, aten.gather, aten.index_select, aten.slice_backward, aten.nll_loss_forward)
def _reads_what_it_picks(cost: Cost) -> None:
    """As many bytes as it writes, and not the whole table."""
    cost.read = cost.written


@cost(aten.native_layer_norm_backward, OWN.fused_rms_norm_backward)
def _reads_twice(cost: Cost) -> None:
    """Once for sums over it, once more for the result (a feature map does not fit into a GPU's caches)."""
    cost.read *= 2


@cost(aten.native_batch_norm, aten.cudnn_batch_norm)
@cost(aten.native_batch_norm_backward, input="grad_out", training="train")
def _batch_norm(cost: Cost, input: torch.Tensor, training: bool, operator: Any) -> None:
    layout = _map_layout(input) if training else torch.contiguous_format
    native = layout is torch.channels_last and input.dtype is torch.bfloat16
    way = operator is aten.native_batch_norm_backward
    ps = (_BATCH_NORM_IN_BF16_PS if native else _BATCH_NORM_PS[layout])[way]
    cost.elements_ps = ps if training else ps / 2
    if training:
        cost.read *= 2


@cost(aten._softmax)
def _softmax(cost: Cost, self: torch.Tensor, dim: int) -> None:
    if self.shape[dim] <= _SHORT_ROW:
        cost.elements_ps /= 2


@cost(aten.copy_)
def _copy_(cost: Cost, inputs: Tensors, outputs: Tensors) -> None:
    cost.read = cost.written
    _copy(cost, inputs, outputs)


@cost(aten._to_copy, aten.clone)
def _copy(cost: Cost, inputs: Tensors, outputs: Tensors) -> None:
    source, target = inputs[-1], outputs[0]
    if source.dtype is not target.dtype:
        cost.share = CONVERTS
    elif source.dim() == target.dim() > 1 and _innermost(source) != _innermost(target):
        cost.share = TRANSPOSES


def _innermost(tensor: torch.Tensor) -> int:
    """Along which dimension neighbours in memory lie."""
    sizes = enumerate(zip(tensor.shape, tensor.stride(), strict=True))
    return min([(stride, -i) for i, (size, stride) in sizes if size > 1 and stride], default=(0, 0))[1]


# --- Tables of which some rows or numbers change in place ---------------------------------------------------

_ADDING = (aten.index_add_, aten.index_reduce_, aten.scatter_add_, aten.scatter_reduce_)


@cost(aten.index_copy_, aten.index_fill_, aten.index_add_, aten.index_reduce_)
def _rows(cost: Cost, self: torch.Tensor, dim: int, index: torch.Tensor, operator: Any) -> None:
    numbers = self.numel() // max(1, self.shape[dim]) * index.numel()
    _change(cost, self, numbers, operator in _ADDING)


@cost(aten.scatter_, aten.scatter_add_, aten.scatter_reduce_)
def _numbers(cost: Cost, self: torch.Tensor, index: torch.Tensor, operator: Any) -> None:
    _change(cost, self, index.numel(), operator in _ADDING)


@cost(aten.index_put_, aten._index_put_impl_)
def _put(cost: Cost, self: torch.Tensor, indices: Sequence[torch.Tensor | None], accumulate: bool) -> None:
    given = [index for index in indices if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        numbers = self.numel()  # by a mask: how many is not known
    else:
        numbers = math.prod(torch.broadcast_shapes(*(index.shape for index in given)))
        for i, size in enumerate(self.shape):
            numbers *= size if i >= len(indices) or indices[i] is None else 1
    _change(cost, self, numbers, accumulate)


def _change(cost: Cost, table: torch.Tensor, numbers: int, adds: bool) -> None:
    """So many of its numbers are written; what adds up reads them first."""
    cost.written = numbers * table.itemsize
    cost.read += (cost.written if adds else 0) - _touched(table)
