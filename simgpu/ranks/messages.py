"""send and recv: messages between two ranks.

Both sides tell each other when they, and their ends of the link, are ready; the message begins at the later of the two
moments, behind what the same pair has sent in the same direction before. The times travel while the program goes on,
and are looked at when somebody waits: for the message, or for the whole GPU. So a link is known to be busy

- with collectives that were issued before;
- at the sender, with messages that it has sent before, as if their receivers had been ready;
- at the receiver, with those that it has already waited for. (Those that it only expects may come much later.)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.distributed import get_global_rank

from simgpu.ranks.cluster import here
from simgpu.ranks.issue import Issue, end_for, message_seconds
from simgpu.ranks.works import SimWork
from simgpu.tensors import known
from simgpu.tensors.tensor import SimTensor
from simgpu.time.work import Timeline, Work

_FROM_SENDER, _FROM_RECEIVER = 1 << 24, 1 << 25
"""Added to a message's tag, for those that say when each side is ready. (One pair's opposite messages are under way at
the same time: what a rank says as a sender must not be taken for what it says as a receiver.)"""


class Direction(Timeline):
    """From one rank of a group to another: messages go one behind the other, in the order in which they are issued."""

    __slots__ = ("issued", "waiting")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.waiting: list[Message] = []
        self.issued: Counter[int] = Counter()  # by tag


class Message:
    """One message that this rank has issued. ``finish`` gives its place in simulated time."""

    def __init__(self, sends: bool, tensor: SimTensor, group: Any, peer: int, tag: int) -> None:
        self._cluster = cluster = here()
        self._other = get_global_rank(group, peer)
        there = cluster.members_of(group).processes
        if self._other not in there and self._other // cluster.each != cluster.rank // cluster.each:
            raise NotImplementedError(
                f"rank {self._other} is no process here: one for each pipeline stage can reach ranks "
                f"{', '.join(map(str, there))}, and those of its own stage"
            )
        self._ends = (cluster.rank, self._other) if sends else (self._other, cluster.rank)
        direction = Direction("the stream of messages")
        self._direction = cluster.directions.setdefault((group.group_name, self._ends), direction)
        moved: tuple[list, list] = ([tensor], []) if sends else ([], [tensor])
        self._seconds = message_seconds(cluster, self._other, tensor.nbytes)
        self._link = end_for(cluster, self._other, sends)
        self._issue = issue = Issue("send" if sends else "recv", self._direction, *moved, cluster.link_free[self._link])
        if sends:  # what this rank does next has to wait so long at least
            cluster.link_free[self._link] = issue.ready + self._seconds
        self.order = issue.work.order
        self._direction.issued[tag] += 1
        number = self._direction.issued[tag]
        self._waits: list = []
        if self._other in there:
            partner = cluster.meeting_of(group), there.index(self._other)
            self._waits = _exchange(sends, tensor, *partner, tag, number, issue.ready)
        elif not sends:
            known.forget([tensor])
        self._tensors = [] if sends else [tensor]
        self._nbytes = tensor.nbytes
        self._work: Work | None = None
        self._mistake: RuntimeError | None = None
        self._direction.waiting.append(self)
        cluster.unfinished.append(self.finish)

    def finish(self) -> Work:
        """Wait, in real time, until the other side has issued it too."""
        while self._work is None and self._mistake is None:
            self._direction.waiting.pop(0)._place()
        if self._mistake is not None:
            raise self._mistake
        assert self._work is not None
        return self._work

    def _place(self) -> None:
        waits, self._waits = self._waits, []
        self._cluster.unfinished = [finish for finish in self._cluster.unfinished if finish != self.finish]
        try:
            theirs = [wait() for wait in waits]
        except RuntimeError as error:
            self._mistake = error
            return
        self._cluster.clock.settle()
        start = max([self._issue.ready, self._direction.time, *theirs])
        lane = f"rank {self._ends[0]} → rank {self._ends[1]}"
        self._work = self._issue.place(start, self._seconds, self._nbytes, self._tensors, lane)
        self._cluster.link_free[self._link] = max(self._cluster.link_free[self._link], self._work.end)
        self._tensors = []


def issue(sends: bool, tensor: SimTensor, group: Any, peer: int, tag: int) -> SimWork:
    """Issue a message to or from rank ``peer`` of the group."""
    message = Message(sends, tensor, group, peer, tag)
    if not sends:
        torch.autograd.graph.increment_version(tensor)
    return SimWork(message.finish, [tensor], message.order)


def _exchange(sends: bool, tensor: SimTensor, group: Any, peer: int, tag: int, number: int, ready: float) -> list:
    """Begin to move the times, and the numbers if there are any; what to call to wait for them.

    The numbers have a tag that says which message this is, and how long: gloo would end a process whose recv meets a
    longer message, and would give what a failed message has left to the next one.
    """
    own_tag = hash((tag, number, tensor.nbytes)) % _FROM_SENDER  # (Python's hash of numbers is always the same)
    has = here().numbers or known.values(tensor) is not None
    own = torch.tensor([ready, has, tensor.nbytes], dtype=torch.float64, device="cpu")
    theirs = torch.zeros(3, dtype=torch.float64, device="cpu")
    tags = (tag + _FROM_SENDER, tag + _FROM_RECEIVER)[:: 1 if sends else -1]
    said, heard = group.send([own], peer, tags[0]), group.recv([theirs], peer, tags[1])
    travel: Any = None
    plain: Any = None
    target: torch.Tensor | None = None
    if sends and has:
        plain = (tensor.raw if here().numbers else tensor.known).detach().clone(memory_format=torch.contiguous_format)
        travel = group.send([plain], peer, own_tag)  # a copy, for the program may write into the tensor
    elif not sends and here().numbers:
        target = tensor.raw.detach()
        plain = target.contiguous()
        travel = group.recv([plain], peer, own_tag)

    def times() -> float:
        heard.wait()
        said.wait()
        if theirs[2] != own[2]:
            sent, expected = (own, theirs) if sends else (theirs, own)
            raise RuntimeError(
                f"a message of {sent[2]:,.0f} bytes meets a recv of {expected[2]:,.0f} bytes, which would fail on real "
                "GPUs: sender and receiver need tensors of the same size"
            )
        return theirs[0].item()

    def data() -> float:
        if travel is not None:
            travel.wait()
        elif not sends and theirs[1]:  # only now is it known that there are numbers
            group.recv([known.kept(tensor)], peer, own_tag).wait()
        elif not sends:
            known.forget([tensor])
        if target is not None and plain is not target:
            target.copy_(plain)
        return 0.0

    return [times, data]
