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

from simgpu.ranks import movement as gloo
from simgpu.ranks.cluster import Members, few
from simgpu.tensors.schemas import tensors_in

ALL, PARTS, LIST, INNER = "all of it", "a part", "its entry", "its entry of the list inside"
"""What there is for each rank, or from each, in an argument: see ``Collective``."""


class Collective(NamedTuple):
    """What people call it, which of the operator's arguments it reads and writes, and how they are moved and shared."""

    name: str
    reads: str
    writes: str
    move: Any = None
    gives: str = ALL
    gets: str = ALL


COLLECTIVES = {
    "allreduce_": Collective("all-reduce", "tensors", "tensors", gloo.all_reduce),
    "allreduce_coalesced_": Collective("all-reduce", "tensors", "tensors", gloo.all_reduce),
    "broadcast_": Collective("broadcast", "tensors", "tensors", gloo.broadcast),
    "reduce_": Collective("reduce", "tensors", "tensors", gloo.reduce),
    "allgather_": Collective("all-gather", "input_tensors", "output_tensors", gloo.all_gather, ALL, INNER),
    "_allgather_base_": Collective("all-gather", "input_tensor", "output_tensor", gloo.gather_whole, ALL, PARTS),
    "allgather_coalesced_": Collective("all-gather", "input_list", "output_lists", gloo.all_gather_lists, ALL, LIST),
    "allgather_into_tensor_coalesced_": Collective("all-gather", "inputs", "outputs", gloo.gather_whole, ALL, PARTS),
    "reduce_scatter_": Collective("reduce-scatter", "input_tensors", "output_tensors", gloo.reduce_scatter, INNER),
    "_reduce_scatter_base_": Collective("reduce-scatter", "input_tensor", "output_tensor", gloo.scatter_whole, PARTS),
    "reduce_scatter_tensor_coalesced_": Collective("reduce-scatter", "inputs", "outputs", gloo.scatter_whole, PARTS),
    "alltoall_base_": Collective("all-to-all", "input", "output", gloo.all_to_all, PARTS, PARTS),
    "alltoall_": Collective("all-to-all", "input_tensors", "output_tensors", gloo.all_to_all_lists, LIST, LIST),
    "gather_": Collective("gather", "input_tensors", "output_tensors", gloo.gather, ALL, INNER),
    "scatter_": Collective("scatter", "input_tensors", "output_tensors", gloo.scatter, INNER),
    "barrier": Collective("barrier", "tensor", "tensor"),
    "monitored_barrier_": Collective("barrier", "tensor", "tensor"),
}
EXCHANGES = ("all-to-all", "gather", "scatter")
_IN_ANY_ORDER = ("allgather_", "reduce_scatter_", "gather_", "scatter_")  # of its dimensions a tensor may be here
_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
_UNKNOWN_TO_NCCL = (torch.int16, torch.uint16, torch.uint32, torch.uint64)
_OF_BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


class Sizes(NamedTuple):
    """Elements that this rank gives to, and expects from, each member (none: all the same), and what all compare.

    Args:
        same: what must be the same on all ranks, in words.
        balance: a sum over what it gives, less one over what it expects: 0 in all if everything fits together. (If one
            process stands for several ranks, 0.)
    """

    same: str
    given: Sequence[int] = ()
    expected: Sequence[int] = ()
    balance: int = 0

    def __str__(self) -> str:
        if not self.given:
            return self.same
        return f"{self.same}, giving the ranks {few(self.given)} elements, expecting {few(self.expected)} of them"


def look(packet: str, values: dict[str, Any], members: Members) -> Sizes:
    """The sizes of this rank's call of an operator of c10d, which has these arguments.

    Raises:
        TypeError: NCCL knows no such type of tensor.
        ValueError: the call does not fit itself, or the group.
    """
    name, reads, writes, _, gives, gets = COLLECTIVES[packet]
    if name == "barrier":
        return Sizes(name)
    inputs, outputs = tensors_in(values[reads]), tensors_in(values[writes])
    root, ranks, me = values.get("root_rank"), members.size, members.place
    if root is not None and not 0 <= root < ranks:
        raise ValueError(f"{name}: no rank {root} can be its root, for the group has {ranks} ranks")
    kind = _check_tensors(name, [*inputs, *outputs], packet in _IN_ANY_ORDER)
    same = f"{name} of {kind}" if name in EXCHANGES else f"{name} of {max(_count(inputs), _count(outputs)):,} {kind}"
    if "reduce_op" in values and name != "broadcast":
        operation = gloo.kind(values)
        if operation in _OF_BITS:
            raise ValueError(f"{name}: NCCL has no {operation.name}: use SUM, AVG, MIN, MAX or PRODUCT")
        same += f", {operation.name}"
    same += "" if root is None else f", root {members.ranks[root]}"
    if gives == gets == ALL:
        return Sizes(same)

    def for_each(way: str, value: Any, splits: Any) -> list[int]:
        if way == ALL:  # to the root only, or from it, if there is one
            count = _count(tensors_in(value))
            return [count] * ranks if root is None else [count * (root == i) for i in range(ranks)]
        return _parts(name, way, value, splits, ranks) if root in (None, me) else [0] * ranks

    given = for_each(gives, values[reads], values.get("input_split_sizes"))
    expected = for_each(gets, values[writes], values.get("output_split_sizes"))
    balance = 0
    if len(members.processes) == ranks:  # (Python's hash of numbers is the same in all processes.)
        balance = sum(hash((me, i, n)) & 0x7FFFFFFF for i, n in enumerate(given))
        balance -= sum(hash((i, me, n)) & 0x7FFFFFFF for i, n in enumerate(expected))
    sizes = Sizes(same, given, expected, balance)
    if given[me] != expected[me]:
        raise ValueError(f"{sizes}: what it gives itself must be what it expects of itself")
    if root == me and len(set(given if name == "scatter" else expected)) > 1:
        raise ValueError(f"{sizes}: all ranks must give and get equally much")
    return sizes


def _check_tensors(name: str, tensors: list[Any], in_any_order: bool) -> str:
    """The name of their type."""
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
    if len(kinds) > 1:
        raise ValueError(f"{name}: its tensors must have one type, not {' and '.join(kinds)}")
    for tensor in tensors:
        if tensor.dtype in _UNKNOWN_TO_NCCL:
            raise TypeError(f"{name}: NCCL has no type {kinds[0]}: send the tensor as another one, with .to(...)")
        raw = tensor.raw
        if in_any_order:
            raw = raw.permute(sorted(range(raw.dim()), key=raw.stride, reverse=True))
        if not any(raw.is_contiguous(memory_format=layout) for layout in _FORMATS):
            raise ValueError(
                f"{name}: tensors must be contiguous, and one of shape {tuple(tensor.shape)} has strides "
                f"{tensor.stride()}: give its .contiguous()"
            )
    return kinds[0] if kinds else "nothing"


def _parts(name: str, way: str, value: Any, splits: Sequence[int] | None, ranks: int) -> list[int]:
    """Elements for, or from, each rank, in an argument of the operator that has a part for each."""
    if way != PARTS:
        entries = value[0] if way == INNER and value else value
        if len(entries) != ranks:
            needs = f"a list of {ranks} tensors, one for each rank"
            raise ValueError(f"{name}: it needs {needs}, and got one of {len(entries)}")
        return [_count(tensors_in(entry)) for entry in entries]
    if splits:
        rows = value.shape[0]
        if len(splits) != ranks or sum(splits) != rows:
            raise ValueError(
                f"{name}: the split sizes must be {ranks} numbers, one for each rank, that add up to the tensor's "
                f"{rows} rows, not {list(splits)}"
            )
        return [size * (value.numel() // max(1, rows)) for size in splits]
    for tensor in tensors_in(value):
        if (tensor.shape[0] if splits is not None and tensor.dim() else tensor.numel()) % ranks:
            shape = tuple(tensor.shape)
            raise ValueError(f"{name}: a tensor of shape {shape} cannot be shared out equally to {ranks} ranks")
    return [_count(tensors_in(value)) // ranks] * ranks


def _count(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
