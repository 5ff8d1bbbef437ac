"""Which work on streams comes before which, whatever its speed: vector clocks, as long as ``simgpu.races`` looks.

An *order* says of each stream up to which piece of work (they are numbered) all is surely done. Each stream has one, of
what comes before its next work, and so has the host. Waiting joins them, as CUDA orders work:

- what one stream runs is in order; what two streams run is not, unless one waits for the other or for an event;
- what the host launches comes after all that the host has waited for. (All threads of the host count as one.)

Source: Mattern: Virtual Time and Global States of Distributed Systems, 1989.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from typing import Any

from simgpu.time.work import Timeline, Work

Order = dict[Timeline, int]
"""Up to which number the work of each stream is done. Never changed, once somebody keeps it."""

_numbers = itertools.count(1)


def joined(first: Order, second: Order | None) -> Order:
    """All that either of them says."""
    if not second or second is first or all(first.get(stream, 0) >= n for stream, n in second.items()):
        return first
    return {stream: max(first.get(stream, 0), second.get(stream, 0)) for stream in first.keys() | second.keys()}


class Ordering:
    """The orders of all streams of this process, and of its host."""

    def __init__(self) -> None:
        self.host: Order = {}
        self.lock = threading.RLock()  # re-entrant: memory can be freed anywhere
        self._streams: dict[Timeline, Order] = {}

    def of(self, stream: Timeline) -> Order:
        """What comes before the next work of a stream."""
        return self._streams.get(stream, {})

    def begin(self, streams: Iterable[Timeline]) -> tuple[int, Order]:
        """New work that waits for these streams: its number, and what comes before it (an order of its own)."""
        before = dict(self.host)
        for stream in streams:
            for other, number in self.of(stream).items():
                if before.get(other, 0) < number:
                    before[other] = number
        return next(_numbers), before

    def end(self, number: int, before: Order, queues: Iterable[Timeline], followers: Iterable[Timeline]) -> Order:
        """The work of ``begin`` is in ``queues``, and ``followers`` wait for it."""
        queues = tuple(queues)
        before |= dict.fromkeys(queues, number)
        for stream in (*queues, *followers):
            self._streams[stream] = joined(self.of(stream), before)
        return before

    def wait(self, stream: Timeline, order: Order | None) -> None:
        """What joins the stream from now on comes after this."""
        with self.lock:
            self._streams[stream] = joined(self.of(stream), order)

    def host_waits(self, order: Order | None) -> None:
        """What the host launches from now on comes after this."""
        with self.lock:
            self.host = joined(self.host, order)


watching: Any = None
"""The ``races.Races`` that look now, if any. It has the ``Ordering`` of all that has been launched since."""


def launched(work: Work, reads: Iterable[Any], writes: Iterable[Any], **how: Any) -> None:
    """Some work has been launched; the simulated tensors that it reads and writes. ``how``: see ``Races.launched``."""
    if watching is not None:
        work.order = watching.launched(work, reads, writes, **how)


def recorded(stream: Timeline) -> Order | None:
    """What is in the stream now, and all that comes before it."""
    return None if watching is None else joined(watching.order.of(stream), watching.order.host)


def stream_waits(stream: Timeline, order: Order | None) -> None:
    """What joins the stream from now on comes after this."""
    if watching is not None:
        watching.order.wait(stream, order)


def stream_waits_for_stream(stream: Timeline, other: Timeline) -> None:
    """What joins the stream from now on comes after what is in the other one."""
    if watching is not None:
        watching.order.wait(stream, watching.order.of(other))


def host_waits(order: Order | None) -> None:
    """What the host launches from now on comes after this."""
    if watching is not None:
        watching.order.host_waits(order)
