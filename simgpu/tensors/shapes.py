"""Shapes without numbers: what an operator returns on torch's "meta" device, remembered.

Many meta kernels are written in Python and take longer than a launch. But a training step asks the same things again
and again, so the answer for the same operator, shapes, strides, types and options is kept.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._torch import address_of, op_of, packet_of, suggest_memory_format
from simgpu.tensors.schemas import tensors_in

aten = torch.ops.aten

_SAME = object()  # "returns its first input", as operators that work in place do


class Answer:
    """What an operator returned for such inputs.

    Attributes:
        description: what is needed to make it again.
        costs: what the call costs; whoever works that out keeps it here.
    """

    __slots__ = ("costs", "description")

    def __init__(self, description: Any) -> None:
        self.description = description
        self.costs: Any = None


_TAKE_A_NUMBER = (aten.masked_fill.Tensor, aten.masked_fill_.Tensor,
                  aten.index_fill.int_Tensor, aten.index_fill_.int_Tensor)  # fmt: skip
_OF_ONE_TYPE = {aten.mm, aten.addmm, aten.mv, aten.convolution, aten._scaled_dot_product_flash_attention_for_cpu}
_WRITES_BY_INDEX = {aten.index_put, aten.index_put_, aten.index_add, aten.index_add_, aten.index_copy, aten.index_copy_}
_known: dict[tuple, Answer] = {}
MOST = 100_000
"""Answers that are kept. (A program with ever new shapes must not fill the memory.)"""


def compute(func: Any, args: Any, kwargs: dict) -> tuple[Any, Answer | None]:
    """Run an operator on tensors of the meta device. (No views, and none that changes the shape of what it gets.)

    Returns:
        What it returns, and the answer that is remembered, if there is one.
    """
    try:
        key = (op_of(func), torch.get_default_dtype(), *map(_key, args))
        if kwargs:
            key += tuple((name, _key(value)) for name, value in kwargs.items())
        known = _known.get(key)
    except TypeError:  # something in it that cannot be a key
        return func(*args, **kwargs), None
    if known is not None:
        return _again(known.description, args), known
    _check_types(func, [*args, *kwargs.values()])
    out = _in_layout_of_cudnn(func, args, func(*_number_on_meta(func, args), **kwargs))
    description = _describe(out, args)
    if description is not None and len(_known) < MOST:
        known = _known[key] = Answer(description)
    return out, known


def _check_types(func: Any, args: list[Any]) -> None:
    """These refuse mixed types on CUDA and on the CPU, but their meta kernels do not."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if packet_of(func) in _WRITES_BY_INDEX:
        tensors = [tensors[0], tensors[-1]]
    elif packet_of(func) not in _OF_ONE_TYPE:
        return
    if len(types := list(dict.fromkeys(str(tensor.dtype) for tensor in tensors))) > 1:
        name = packet_of(func).__name__
        sentence = "Expected all tensors to have the same dtype, but found"
        raise RuntimeError(f"{sentence} {' and '.join(types)}! (in {name}; convert one of them with .to(...))")


def _number_on_meta(func: Any, args: Any) -> Any:
    """Some meta kernels refuse a number on the host, which CUDA's take."""
    return (*args[:-1], args[-1].to("meta")) if func in _TAKE_A_NUMBER else args


def _in_layout_of_cudnn(func: Any, args: Any, out: Any) -> Any:
    """Meta kernels of convolutions do not say how their maps lie. cuDNN's lie as the input or the weights do."""
    if func is aten.convolution.default:
        return out.contiguous(memory_format=_layout(args[0], args[1]))
    if func is aten.convolution_backward.default and out[0] is not None:
        return (out[0].contiguous(memory_format=_layout(args[1], args[2])), *out[1:])
    return out


def _layout(maps: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    formats = {suggest_memory_format(tensor) for tensor in (maps, weight)}
    return (formats - {torch.contiguous_format} or {torch.contiguous_format}).pop()


def _key(arg: Any) -> Any:
    kind = type(arg)
    if kind is int or kind is bool or kind is float:
        return kind, arg
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.stride(), arg.dtype, arg.storage_offset(), arg.is_meta or arg.device.type
    if kind is list or kind is tuple:
        return tuple(map(_key, arg))
    return arg


def _storages(value: Any) -> set[int]:
    return {address_of(tensor.untyped_storage()) for tensor in tensors_in(value)}


def _describe(out: Any, args: Any) -> Any:
    """What is needed to make ``out`` again; None if that cannot be said."""
    if out is None:
        return (None,)
    if args and out is args[0]:
        return _SAME
    if isinstance(out, torch.Tensor):
        if out.storage_offset() or not out.is_meta or _storages(out) & _storages(args):
            return None
        return (out.shape, out.stride(), out.dtype)
    if type(out) in (list, tuple):
        each = [_describe(part, ()) if not _storages(part) & _storages(args) else None for part in out]
        return None if None in each else [type(out), *each]
    return None


def _again(known: Any, args: Any) -> Any:
    if known is _SAME:
        return args[0]
    if type(known) is list:
        kind, *each = known
        return kind(_again(part, ()) for part in each)
    if len(known) == 1:
        return None
    shape, stride, dtype = known
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
