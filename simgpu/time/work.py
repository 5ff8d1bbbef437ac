"""The parts of simulated time: streams, ends of links, lanes of the host, and the work that they do.

``simgpu.time.clock`` decides when each piece of work runs.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Timeline:
    """What does one thing after the other, in the order in which it was launched: a stream."""

    __slots__ = ("name", "time")

    def __init__(self, name: str) -> None:
        self.name = name
        self.time = 0.0

    def reach(self, time: float) -> None:
        """What it does next begins then, or later."""
        self.time = max(self.time, time)


class Port:
    """One direction of a link. It carries one message at a time, in the order in which they are ready."""

    __slots__ = ("_begins", "_ends", "name")
    KEPT = 256  # gaps before the last so many messages are not used any more

    def __init__(self, name: str) -> None:
        self.name = name
        self._begins: list[float] = []
        self._ends: list[float] = []

    def free_from(self, start: float, seconds: float) -> float:
        """The earliest moment from ``start`` on at which it is free for ``seconds``."""
        i = bisect.bisect_right(self._ends, start)
        while i < len(self._ends) and self._begins[i] < start + seconds:
            start = self._ends[i]
            i += 1
        return start

    def take(self, start: float, seconds: float) -> None:
        """Keep it busy from ``start`` on for ``seconds``."""
        i = bisect.bisect_right(self._begins, start)
        self._begins.insert(i, start)
        self._ends.insert(i, start + seconds)
        if len(self._ends) > self.KEPT:  # what is long ago becomes one long message
            self._begins[:2], self._ends[:2] = [self._begins[0]], [self._ends[1]]


class Stamp:
    """A moment in a host lane: when everything launched before it has ended in ``stream``.

    Its time is known once the lane's queue has been placed; and so is ``host``, the lane's own time there.
    """

    __slots__ = ("host", "stream", "time")

    def __init__(self, stream: Timeline) -> None:
        self.stream = stream
        self.time = self.host = 0.0


MOST = 0.9
"""Of a GPU: what several collectives at once take at most."""


class Share(NamedTuple):
    """What a collective takes of a GPU: of its multiprocessors, and of its memory's bandwidth; parts of 1."""

    multiprocessors: float
    bandwidth: float


class Kernel(NamedTuple):
    """What limits a kernel, in seconds: to begin and end; its products, of ``dtype``; its memory; layouts.

    And what it does: floating-point operations, and bytes read and written.
    """

    begin_s: float
    compute_s: float
    memory_s: float
    layout_s: float = 0.0
    dtype: str = ""
    flops: int = 0
    nbytes: int = 0

    @property
    def seconds(self) -> float:
        """How long it takes alone."""
        return self.begin_s + max(self.compute_s, self.memory_s) + self.layout_s

    def beside(self, shares: list[Share]) -> float:
        """How long it would take if all of it ran beside these."""
        rest = 1 - min(MOST, sum(share.multiprocessors for share in shares))
        bandwidth = 1 - min(MOST, sum(share.bandwidth for share in shares))
        return self.begin_s + max(self.compute_s / rest, self.memory_s / bandwidth) + self.layout_s / bandwidth


@dataclass(slots=True, eq=False)
class Work:
    """One operator, copy or collective on the timeline.

    Args:
        name, phase, place, gpus, flops, nbytes, dtype, how, region, launched, start, end, ready: as in the
            ``TraceEvent`` of a profile, but in seconds of the clock; an ``end`` below zero says that it has no place
            yet.
        seconds: how long it takes on the device.
        queues: the streams that it keeps busy.
        followers: streams that wait for its end without being busy.
        ports: the ends of links that it keeps busy.
        host_waits: the host goes on only when it has ended.
        kernel: what limits it, if it is one that collectives slow down.
        share: what it takes of GPUs, if it is a collective.
        shared: of which GPUs, each a ``sharing.Sharing``.
        needs: what must have ended before. (This and what follows is filled in by ``Clock.put``.)
        lane: the host thread that launches it.
        launch_s: what the host needs to launch it.
        takes_gil: launched from Python: for a part of ``launch_s`` no other Python thread can go on.
        earliest: when a kernel could have begun without those before it in its stream.
        order: what comes before those who wait for it, while somebody looks for races.
    """

    name: str
    phase: str
    place: str
    seconds: float
    gpus: tuple[int, ...]
    queues: tuple[Timeline, ...]
    followers: tuple[Timeline, ...] = ()
    ports: tuple[Port, ...] = ()
    host_waits: bool = False
    flops: int = 0
    nbytes: int = 0
    dtype: str = ""
    how: str = ""
    kernel: Kernel | None = None
    share: Share | None = None
    shared: tuple[Any, ...] = ()
    needs: tuple[Work, ...] = ()
    lane: str = ""
    region: str = ""
    launch_s: float = 0.0
    takes_gil: bool = True
    launched: float = 0.0
    start: float = 0.0
    end: float = -1.0
    earliest: float = 0.0
    ready: float | None = None
    order: dict[Timeline, int] | None = None


class Lane:
    """One thread of the host, as the simulation sees it, from ``time`` on.

    Args:
        order: decides between lanes that are equally early.
        region: what ``simgpu.region`` calls the work that it launches.
    """

    def __init__(self, name: str, time: float, order: tuple, region: str = "") -> None:
        self.name = name
        self.time = time
        self.order = order
        self.region = region
        self.gpu = 0  # that it worked for last
        self.queue: deque = deque()
        self.ended: Callable[[], bool] = lambda: False

    def reach(self, time: float) -> None:
        """The host goes on then, or later."""
        self.time = max(self.time, time)
