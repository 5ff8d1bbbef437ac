"""What every rank gives in a collective, and what it gets: looked at before anything travels, as NCCL and torch do.

One table says how each operator shares its tensors out to the ranks. From it come the checks (the same with numbers and
with shapes only), the bytes on each link, and what the ranks compare when they meet: rank i gives rank j as much as
rank j expects from rank i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from simgpu.distributed import movement
from simgpu.distributed.cluster import here
from simgpu.launches import tensors_in

ALL, PARTS, LIST, INNER = "all of it", "a part", "its entry", "its entry of the list inside"
"""What there is for each rank, or from each, in an argument: see ``Collective``."""


class Collective(NamedTuple):
    """What people call it, which of the operator's arguments it reads and writes, and how those are shared out."""

    name: str
    reads: str
    writes: str
    gives: str = ALL
    gets: str = ALL


COLLECTIVES = {
    "allreduce_": Collective("all-reduce", "tensors", "tensors"),
    "allreduce_coalesced_": Collective("all-reduce", "tensors", "tensors"),
    "broadcast_": Collective("broadcast", "tensors", "tensors"),
    "reduce_": Collective("reduce", "tensors", "tensors"),
    "allgather_": Collective("all-gather", "input_tensors", "output_tensors", ALL, INNER),
    "_allgather_base_": Collective("all-gather", "input_tensor", "output_tensor", ALL, PARTS),
    "allgather_coalesced_": Collective("all-gather", "input_list", "output_lists", ALL, LIST),
    "allgather_into_tensor_coalesced_": Collective("all-gather", "inputs", "outputs", ALL, PARTS),
    "reduce_scatter_": Collective("reduce-scatter", "input_tensors", "output_tensors", INNER, ALL),
    "_reduce_scatter_base_": Collective("reduce-scatter", "input_tensor", "output_tensor", PARTS, ALL),
    "reduce_scatter_tensor_coalesced_": Collective("reduce-scatter", "inputs", "outputs", PARTS, ALL),
    "alltoall_base_": Collective("all-to-all", "input", "output", PARTS, PARTS),
    "alltoall_": Collective("all-to-all", "input_tensors", "output_tensors", LIST, LIST),
    "gather_": Collective("gather", "input_tensors", "output_tensors", ALL, INNER),
    "scatter_": Collective("scatter", "input_tensors", "output_tensors", INNER, ALL),
    "barrier": Collective("barrier", "tensor", "tensor"),
    "monitored_barrier_": Collective("barrier", "tensor", "tensor"),
}
EXCHANGES = ("all-to-all", "gather", "scatter")
_IN_ANY_ORDER = ("allgather_", "reduce_scatter_", "gather_", "scatter_")  # of its dimensions a tensor may be here
_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
_UNKNOWN_TO_NCCL = (torch.int16, torch.uint16, torch.uint32, torch.uint64)
_OF_BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


class Sizes(NamedTuple):
    """Elements that this rank gives to, and expects from, each member; and what all ranks compare.

    Args:
        same: what must be the same on all ranks, in words.
        given, expected: elements, by member; empty where all give and get the same.
        balance: a sum over what it gives, less one over what it expects: 0 in all if everything fits together.
    """

    same: str
    given: list[int]
    expected: list[int]
    balance: int

    def __str__(self) -> str:
        if not self.given:
            return self.same
        return f"{self.same}, giving the ranks {_some(self.given)} elements, expecting {_some(self.expected)} of them"


def look(packet: str, values: dict[str, Any], members: Sequence[int]) -> Sizes:
    """The sizes of this rank's call of an operator of c10d, which has these arguments.

    Raises:
        TypeError: NCCL knows no such type of tensor.
        ValueError: the call does not fit itself, or the group.
    """
    name, reads, writes, gives, gets = COLLECTIVES[packet]
    if name == "barrier":
        return Sizes(name, [], [], 0)
    me, start = members.index(here().rank), f"{name}: "
    inputs, outputs = tensors_in(values[reads]), tensors_in(values[writes])
    root = values.get("root_rank")
    if root is not None and not 0 <= root < len(members):
        raise ValueError(f"{start}no rank {root} can be its root, for the group has {len(members)} ranks")
    _check_tensors(packet, start, [*inputs, *outputs])
    same = name if name in EXCHANGES else f"{name} of {max(_count(inputs), _count(outputs)):,}"
    same += f"{' of' * (name in EXCHANGES)} {_plain_name((inputs or outputs)[0].dtype)}" if inputs or outputs else ""
    if "reduce_op" in values and name != "broadcast":
        operation = movement.kind(values)
        if operation in _OF_BITS:
            raise ValueError(f"{start}NCCL has no {operation.name}: use SUM, AVG, MIN, MAX or PRODUCT")
        same += f", {operation.name}"
    same += "" if root is None else f", root {members[root]}"
    if gives == gets == ALL:
        return Sizes(same, [], [], 0)
    given = _for_each(start, gives, values[reads], values.get("input_split_sizes"), len(members), root, me)
    expected = _for_each(start, gets, values[writes], values.get("output_split_sizes"), len(members), root, me)
    sizes = Sizes(same, given, expected, _balance(given, expected, me))
    if given[me] != expected[me]:
        raise ValueError(f"{sizes}: what it gives itself must be what it expects of itself")
    if root is not None and len(set(given if name == "scatter" else expected)) > 1 and me == root:
        raise ValueError(f"{sizes}: all ranks must give and get equally much")
    return sizes


def _check_tensors(packet: str, start: str, tensors: list[Any]) -> None:
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1:
        raise ValueError(f"{start}its tensors must have one type, not {' and '.join(sorted(map(_plain_name, types)))}")
    for tensor in tensors:
        if tensor.dtype in _UNKNOWN_TO_NCCL:
            raise TypeError(
                f"{start}NCCL has no type {_plain_name(tensor.dtype)}: send the tensor as another one, with .to(...)"
            )
        if not _contiguous(tensor, packet in _IN_ANY_ORDER):
            raise ValueError(
                f"{start}tensors must be contiguous, and one of shape {tuple(tensor.shape)} has strides "
                f"{tensor.stride()}: give its .contiguous()"
            )


def _contiguous(tensor: Any, in_any_order: bool) -> bool:
    raw = tensor.raw
    if in_any_order:
        raw = raw.permute(sorted(range(raw.dim()), key=raw.stride, reverse=True))
    return any(raw.is_contiguous(memory_format=one) for one in _FORMATS)


def _for_each(
    start: str, way: str, value: Any, splits: Sequence[int] | None, ranks: int, root: int | None, me: int
) -> list[int]:
    """Elements for, or from, each rank, in an argument of the operator."""
    tensors = tensors_in(value)
    if way == ALL:
        return [_count(tensors) * (root in (None, i)) for i in range(ranks)]
    if root not in (None, me):
        return [0] * ranks
    if way == PARTS:
        if splits:
            rows = value.shape[0]
            if len(splits) != ranks or sum(splits) != rows:
                raise ValueError(
                    f"{start}the split sizes must be {ranks} numbers, one for each rank, that add up to the tensor's "
                    f"{rows} rows, not {list(splits)}"
                )
            return [size * (value.numel() // max(1, rows)) for size in splits]
        for tensor in tensors:
            if (tensor.shape[0] if splits is not None and tensor.dim() else tensor.numel()) % ranks:
                raise ValueError(
                    f"{start}a tensor of shape {tuple(tensor.shape)} cannot be shared out equally to {ranks} ranks"
                )
        return [_count(tensors) // ranks] * ranks
    entries = value[0] if way == INNER and value else value
    if len(entries) != ranks:
        raise ValueError(f"{start}it needs a list of {ranks} tensors, one for each rank, and got one of {len(entries)}")
    return [_count(tensors_in(entry)) for entry in entries]


def _balance(given: list[int], expected: list[int], me: int) -> int:
    """Of all pairs of ranks and what goes from one to the other. (Python's hash of numbers is always the same.)"""
    out = sum(hash((me, i, n)) & 0x7FFFFFFF for i, n in enumerate(given))
    return out - sum(hash((i, me, n)) & 0x7FFFFFFF for i, n in enumerate(expected))


def _count(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _plain_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(f"{n:,}" for n in numbers[:8]) + ", …" * (len(numbers) > 8)
