"""send and recv on the wire: announced to the partner at once, compared with what the partner says, carried then.

So a message that does not fit its place, and a rank that waits for one whose step is over, are told on all ranks at
once, and nobody hangs. (Ranks that wait in a circle do: they are found standing still.)
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist

from checks.engine.launches import Launch
from checks.engine.plain import bits

RETURNED, STOPPED = ENDS = ("has returned", "has stopped")  # how a rank's step may end
_SEND, _ROOM, _OVER = range(3)  # what a rank tells another
_ANY = -1  # room for a message whatever its tag: of a recv that names no sender
Note = tuple[int, int, int, int]  # what; its tag, or how the step has ended; bytes; which message of this pair


class Alone(Exception):
    """A rank cannot go on. The text says why; the more ``telling`` of two ranks is the cause."""

    def __init__(self, sentence: str, telling: int) -> None:
        super().__init__(sentence)
        self.telling = telling


class Messages:
    """Of one rank. ``group`` is for the ranks' own words to each other, and for what they carry."""

    def __init__(self, group: Any) -> None:
        self._group, self._rank = group, dist.get_rank()
        self._others = [rank for rank in range(group.size()) if rank != self._rank]
        self._notes: list[Any] = []  # gloo drops a message of which nobody holds the work
        self._carried: list[Any] = []
        self._sent: dict[int, int] = defaultdict(int)
        self._begin()

    def _begin(self) -> None:
        self._open: list[Launch] = []  # begun, and nobody has waited for them
        self._heard: list[tuple[int, Note]] = []  # from whom; what nobody has needed yet
        self._ended: dict[int, int] = {}

    def begin(self, launch: Launch, tensor: torch.Tensor) -> None:
        """A send or recv was called, with this copy of its tensor."""
        if launch.peer == self._rank:
            raise Alone(f"rank {self._rank} sends to itself, or receives from itself", 3)
        if launch.peer is not None and not 0 <= launch.peer < self._group.size():
            raise ValueError(f"there is no rank {launch.peer} in a world of {self._group.size()}")
        if not tensor.is_contiguous():  # as gloo has it
            raise ValueError("input tensor has to be contiguous")
        launch.carries = tensor
        self._open.append(launch)
        if launch.name == "recv":
            for peer in self._others if launch.peer is None else [launch.peer]:
                self._tell(peer, _ROOM, _ANY if launch.peer is None else launch.tag, launch.bytes)
            return
        to = launch.peer
        assert to is not None
        self._sent[to] += 1
        self._tell(to, _SEND, launch.tag, launch.bytes, self._sent[to])
        if launch.bytes:
            self._carried.append(self._group.send([bits(tensor)], to, self._sent[to]))

    def finish(self, launch: Launch) -> None:
        """Somebody waits for it: come back when the partner has called its part, a recv with the message.

        Raises:
            Alone: the partner does not come, or has other bytes in mind.
        """
        for earlier in [one for one in self._open if _compete(one, launch)]:  # who comes first is served first
            earlier.partner = self._partner(earlier)
            self._open.remove(earlier)
            if earlier is launch:
                break
        peer, (_, _, nbytes, number) = launch.partner
        if nbytes != launch.bytes:
            sizes = {launch.name: launch.bytes, "send" if launch.name == "recv" else "recv": nbytes}
            source, target = (peer, self._rank) if launch.name == "recv" else (self._rank, peer)
            words = f"rank {source} sends {sizes['send']:,} bytes, and rank {target} has room for {sizes['recv']:,}"
            raise Alone(f"a message does not fit the place for it: {words}. Both must mean the same", 3)
        if launch.name == "recv":
            launch.peer = peer
            if nbytes:
                self._group.recv([bits(launch.carries)], peer, number).wait()

    def end(self, how: str) -> None:
        """Tell all others that this rank's step is over."""
        for peer in self._others:
            self._tell(peer, _OVER, ENDS.index(how))

    def forget(self) -> None:
        """All ranks have told that their step is over: hear what is left, so that it is not there in the next one."""
        for peer in self._others:
            while peer not in self._ended:
                self._hear(peer)
        for work in self._notes:  # the others hear them too, or they would wait for a rank that has gone
            work.wait()
        self._notes.clear()
        self._begin()

    def _partner(self, launch: Launch) -> tuple[int, Note]:
        """From whom, and what: the first note that belongs to this message."""
        wanted = (_SEND, launch.tag) if launch.name == "recv" else (_ROOM, launch.tag)
        while True:
            for place, (peer, note) in enumerate(self._heard):
                if launch.peer in (None, peer) and (note[:2] == wanted or note[:2] == (wanted[0], _ANY)):
                    return self._heard.pop(place)
            missing = [peer for peer in self._others if launch.peer in (None, peer)]
            if all(peer in self._ended for peer in missing):
                ends = " and ".join(f"rank {peer}, which {ENDS[self._ended[peer]]}" for peer in missing)
                words = "for a message from" if launch.name == "recv" else "to send a message to"
                sentence = f"rank {self._rank} waits {words} {ends or 'nobody'}: it would wait for ever"
                raise Alone(sentence, 1 if any(ENDS[self._ended[peer]] == STOPPED for peer in missing) else 2)
            self._hear(launch.peer)

    def _hear(self, peer: int | None) -> None:
        """Wait for the next note of a rank, or of any."""
        note = torch.empty(4, dtype=torch.int64)
        if peer is None:
            work = self._group.recv_anysource([note], 0)
            work.wait()
            peer = work._source_rank()
        else:
            self._group.recv([note], peer, 0).wait()
        found = tuple(note.tolist())
        if found[0] == _OVER:
            self._ended[peer] = found[1]
        else:
            self._heard.append((peer, found))

    def _tell(self, peer: int, what: int, tag: int, nbytes: int = 0, number: int = 0) -> None:
        note = torch.tensor([what, tag, nbytes, number])
        self._notes.append(self._group.send([note], peer, 0))


def _compete(one: Launch, other: Launch) -> bool:
    """Whether a message could belong to both."""
    same = one.peer == other.peer or None in (one.peer, other.peer)
    return same and (one.name, one.tag) == (other.name, other.tag)
