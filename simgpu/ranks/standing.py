"""Collectives of known numbers in a group of which some members are no processes (``simgpu.one_of``).

A process stands for the members of its pipeline stage: they give what it gives. With shapes only, what travels is few.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d

from simgpu.ranks.cluster import here


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
