"""The numbers of a collective really travel: the same collective on plain CPU tensors, over gloo.

The factor of a pre-multiplied sum (``torch.distributed._make_nccl_premul_sum``) is one that c10d does not tell Python.
But whoever asks for such a sum writes it into the collective's options just before, in the same thread: it is noted
there.

In a group of which some members are no processes (``simgpu.one_of``), a process stands for the members of its pipeline
stage: they give what it gives. With shapes only, what travels is few.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d

from simgpu._torch import all_gather_base
from simgpu.changes import replace
from simgpu.ranks.cluster import here

PREMULTIPLIED, AVERAGE = ReduceOp.PREMUL_SUM, ReduceOp.AVG
_noted = threading.local()


def connect() -> None:
    """Until ``simgpu.uninstall``."""
    for options in (c10d.AllreduceOptions, c10d.ReduceOptions, c10d.ReduceScatterOptions):
        replace(options, "reduceOp", _noting)


def _noting(plain: Any) -> property:
    def note(options: Any, op: Any) -> None:
        state = op.__getstate__() if isinstance(op, ReduceOp) else op
        if isinstance(state, tuple):  # the kind and the factor
            _noted.factor = state[1]
        plain.__set__(options, op)

    return property(plain.__get__, note)


def scaled(value: Any, written: set[int]) -> Any:
    """Tensors times the factor, in place where the collective writes into them."""
    if isinstance(value, Tensor):
        return value.mul_(_noted.factor) if id(value) in written else value * _noted.factor
    if isinstance(value, (list, tuple)):
        return [scaled(each, written) for each in value]
    return value


Options = Callable[[Any], Any]
Mover = Callable[[Any, dict, Options], None]
"""Gets the group, an operator's arguments by name, and what fills in the options of gloo's collective."""


def move(mover: Mover, group: Any, values: dict[str, Any], outputs: list[Tensor]) -> None:
    """Run an operator of c10d over gloo.

    Args:
        mover: one of those below.
        values: its arguments by name, with plain CPU tensors.
        outputs: those of them that it writes.
    """
    asked = kind(values)
    staged: list[tuple[Tensor, Tensor]] = []
    written = {id(tensor) for tensor in outputs}
    if asked == PREMULTIPLIED:
        values = {name: scaled(value, written) for name, value in values.items()}
    values = {name: _contiguous(value, staged, written) for name, value in values.items()}
    mover(group, values, lambda options: _filled(options, values, asked))
    for target, source in staged:
        target.copy_(source)
    if asked == AVERAGE:
        for tensor in outputs:
            tensor.div_(group.size()) if tensor.is_floating_point() else tensor.floor_divide_(group.size())


def kind(values: dict[str, Any]) -> Any:
    """The kind of reduction that an operator's arguments ask for; None if they ask for none."""
    op = values.get("reduce_op")
    if op is None:
        return None
    return ReduceOp.RedOpType(int(op.op()))


def _contiguous(value: Any, staged: list, written: set[int]) -> Any:
    """gloo wants tensors without holes."""
    if isinstance(value, Tensor) and not value.is_contiguous():
        copy = value.contiguous()
        if id(value) in written:
            staged.append((value, copy))
        return copy
    if isinstance(value, (list, tuple)):
        return [_contiguous(each, staged, written) for each in value]
    return value


def _filled(options: Any, values: dict[str, Any], asked: Any) -> Any:
    if asked is not None:
        options.reduceOp = ReduceOp(ReduceOp.SUM if asked in (AVERAGE, PREMULTIPLIED) else asked)
    if "root_rank" in values:
        options.rootRank = values["root_rank"]
    return options


def all_reduce(group: Any, values: dict, options: Options) -> None:
    for tensor in values["tensors"]:
        group.allreduce([tensor], options(c10d.AllreduceOptions())).wait()


def broadcast(group: Any, values: dict, options: Options) -> None:
    group.broadcast(values["tensors"], options(c10d.BroadcastOptions())).wait()


def reduce(group: Any, values: dict, options: Options) -> None:
    (tensor,) = values["tensors"]
    copy = tensor.clone()  # gloo leaves its intermediate sums in those of the others
    group.reduce([copy], options(c10d.ReduceOptions())).wait()
    if group.rank() == values["root_rank"]:
        tensor.copy_(copy)


def all_gather(group: Any, values: dict, _options: Options) -> None:
    """Of tensors of several sizes, as NCCL does it, too: a broadcast from each rank."""
    (outputs,), (source,) = values["output_tensors"], values["input_tensors"]
    if len({tensor.numel() for tensor in outputs}) == 1:
        flat = [tensor.view(-1) for tensor in outputs]
        group.allgather([flat], [source.view(-1)], c10d.AllgatherOptions()).wait()
        return
    outputs[group.rank()].copy_(source.view_as(outputs[group.rank()]))
    for root, tensor in enumerate(outputs):
        group.broadcast([tensor], _filled(c10d.BroadcastOptions(), {"root_rank": root}, None)).wait()


def all_gather_lists(group: Any, values: dict, _options: Options) -> None:
    for outputs, source in zip(zip(*values["output_lists"], strict=True), values["input_list"], strict=True):
        group.allgather([list(outputs)], [source], c10d.AllgatherOptions()).wait()


def _wholes(values: dict) -> Iterator[tuple[Tensor, Tensor]]:
    """Each output with its input: of one tensor, or of several at once."""
    outputs = values.get("outputs") or [values["output_tensor"]]
    return zip(outputs, values.get("inputs") or [values["input_tensor"]], strict=True)


def gather_whole(group: Any, values: dict, _options: Options) -> None:
    for output, source in _wholes(values):
        all_gather_base(group)(output, source, c10d.AllgatherOptions()).wait()


def reduce_scatter(group: Any, values: dict, options: Options) -> None:
    _scatter_sum(group, values["output_tensors"][0], values["input_tensors"][0], options)


def scatter_whole(group: Any, values: dict, options: Options) -> None:
    for output, source in _wholes(values):
        _scatter_sum(group, output, list(source.reshape(-1).chunk(group.size())), options)


def _scatter_sum(group: Any, output: Tensor, parts: list[Tensor], options: Options) -> None:
    """By an all-reduce, whose sums are added in the same order on every rank."""
    whole = torch.cat([part.reshape(-1) for part in parts])
    group.allreduce([whole], options(c10d.AllreduceOptions())).wait()
    part = whole.split([part.numel() for part in parts])[group.rank()]
    output.copy_(part.view(output.shape))


def all_to_all(group: Any, values: dict, _options: Options) -> None:
    splits = list(values["output_split_sizes"]), list(values["input_split_sizes"])
    group.alltoall_base(values["output"], values["input"], *splits, c10d.AllToAllOptions()).wait()


def all_to_all_lists(group: Any, values: dict, _options: Options) -> None:
    inputs, outputs = values["input_tensors"], values["output_tensors"]
    flat = torch.cat([tensor.reshape(-1) for tensor in inputs])
    sizes = [tensor.numel() for tensor in outputs]
    output = flat.new_empty(sum(sizes))
    group.alltoall_base(output, flat, sizes, [tensor.numel() for tensor in inputs], c10d.AllToAllOptions()).wait()
    for target, part in zip(outputs, output.split(sizes), strict=True):
        target.copy_(part.view(target.shape))


def gather(group: Any, values: dict, options: Options) -> None:
    group.gather(values["output_tensors"], values["input_tensors"], options(c10d.GatherOptions())).wait()


def scatter(group: Any, values: dict, options: Options) -> None:
    group.scatter(values["output_tensors"], values["input_tensors"], options(c10d.ScatterOptions())).wait()


class Standing:
    """What ``movement`` takes for gloo's group, with those of its methods that can be done so.

    Args:
        group: torch's, which has all members.
    """

    def __init__(self, group: Any) -> None:
        cluster = here()
        members = cluster.members_of(group)
        self._meeting, self._place, self._size = cluster.meeting_of(group), members.place, members.size
        self._processes = len(members.processes)
        stages = {rank // cluster.each: i for i, rank in enumerate(members.processes)}
        self._process_of = [stages[rank // cluster.each] for rank in members.ranks]

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._place

    def wait(self) -> None:
        """Everything is done at once."""

    def _by_process(self, tensor: Tensor) -> list[Tensor]:
        if self._meeting is None:
            return [tensor.clone()]
        given = [torch.empty_like(tensor) for _ in range(self._processes)]
        self._meeting.allgather([given], [tensor], c10d.AllgatherOptions()).wait()
        return given

    def _by_member(self, tensor: Tensor) -> list[Tensor]:
        given = self._by_process(tensor)
        return [given[process] for process in self._process_of]

    def allreduce(self, tensors: list[Tensor], options: Any) -> Standing:
        given, times = torch.stack(self._by_process(tensors[0])), self._size // self._processes
        if options.reduceOp == ReduceOp.SUM:
            result = given.sum(0) * times
        elif options.reduceOp == ReduceOp.PRODUCT:
            result = given.prod(0) ** times
        else:
            result = given.amin(0) if options.reduceOp == ReduceOp.MIN else given.amax(0)
        tensors[0].copy_(result)
        return self

    reduce = allreduce

    def broadcast(self, tensors: list[Tensor], options: Any) -> Standing:
        tensors[0].copy_(self._by_member(tensors[0])[options.rootRank])
        return self

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], _options: Any) -> Standing:
        for target, given in zip(outputs[0], self._by_member(inputs[0]), strict=True):
            target.copy_(given.view_as(target))
        return self

    def _allgather_base(self, output: Tensor, source: Tensor, _options: Any) -> Standing:
        return self.allgather([list(output.view(-1).chunk(self._size))], [source], None)

    def alltoall_base(self, output: Tensor, source: Tensor, outs: list, ins: list, _options: Any) -> Standing:
        """Of as many rows from each as this process gives itself: all give their members what this one gives its."""
        parts = [given.split(ins or len(source) // self._size)[self._place] for given in self._by_member(source)]
        output.copy_(torch.cat(parts))
        return self

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any) -> Standing:
        given = self._by_member(inputs[0])
        for target, each in zip(outputs[0] if outputs else [], given, strict=False):
            target.copy_(each)
        return self

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], _options: Any) -> Standing:
        outputs[0].copy_(inputs[0][self._place])
        return self
