"""``with simgpu.races() as races:`` finds work of two streams on the same memory that nothing puts in order.

A simulated GPU computes at once, so a program with a race gives the right numbers here, and wrong ones, now and then,
on a real GPU. The detector does not wait for that. It follows what CUDA would order (``happens_before``), and reports
two accesses to the same bytes, at least one of which writes, if neither comes before the other. So luck plays no part:
the same program has the same races each time.

What counts as ordered, and is not seen from the streams alone:

- autograd runs each operator of backward where its forward ran, and so after what that had waited for. A tensor that
  forward has kept may therefore be read there; what backward writes must be ordered.
- memory goes back to the stream in which it was allocated when its tensor is gone, and the next tensor there that is
  equally large gets it, as from CUDA's allocator: ``record_stream`` tells it who else uses it. Collectives keep what
  they use.

What a race says to the reader: who does what, where, and what would put the two in order.
"""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from simgpu._torch import TorchDispatchMode, address_of, packet_of, schema_of
from simgpu.cluster import current
from simgpu.tensors.schemas import tensors_in
from simgpu.time import happens_before
from simgpu.time.accesses import Access, Extent, History, Place, place_now, users_frame
from simgpu.time.happens_before import Order, Ordering, joined
from simgpu.time.phases import BACKWARD, FORWARD, in_backward, phase_now
from simgpu.time.work import Timeline, Work

HOST = -1
"""In place of a GPU's number: memory of the host."""
Host = Timeline("the host")
"""In place of a stream."""

_OURS = 3
"""References to a frame's variables: its own, the one here, and that of who counts."""


class RaceError(RuntimeError):
    """A race, for those who want the program to stop there: ``simgpu.races(stop=True)``."""


@dataclass
class Race:
    """Two accesses to the same memory that nothing puts in order.

    Args:
        kind: "order": streams; "memory": memory that was given to another tensor; "host": a copy, and the host.
        where: "GPU 0", or "the host".
        first, second: the accesses, in words, in the order in which they were launched.
        cure: what would put them in order.
        times: how often this pair of lines has been found.
    """

    kind: str
    where: str
    first: str
    second: str
    cure: str
    times: int = field(default=1, compare=False)

    def __str__(self) -> str:
        again = f" (found {self.times} times)" if self.times > 1 else ""
        return (
            f"Race on {self.where}: nothing puts these two in order{again}.\n"
            f"  {self.first}\n  {self.second}\nWhat would: {self.cure}"
        )


def describe(kind: str, first: Access, second: Access, frame: Any) -> tuple[str, str, str, str]:
    """Where, who first, who second, and the cure. ``frame`` knows how the user calls the streams."""
    where = "the host" if HOST in (first.gpu, second.gpu) else f"GPU {second.gpu}"
    shape = "×".join(map(str, first.shape)) or "one number"
    what = f"a tensor of {shape}" + (" in pinned memory" if kind == "host" else "")
    that = "a new tensor into the same memory" if kind == "memory" else "it"
    return where, _said(first, what, frame), _said(second, that, frame), _cure(kind, first, second, frame)


def _said(access: Access, what: str, frame: Any) -> str:
    verb = "writes" if access.writes else "reads"
    return f"{access.name} {verb} {what}, {_label(access, frame)}: {_place(access)}"


def _cure(kind: str, first: Access, second: Access, frame: Any) -> str:
    if kind == "memory":
        return f".record_stream({_expression(first, frame)}) of the first tensor, before it is gone"
    if second.stream is Host:
        return "let the host wait for the copy before, with an event's .synchronize() or torch.simgpu.synchronize()"
    if first.waited == "wait()":
        return f"call .wait() on what {first.name} returned, before the second"
    waits = _expression(second, frame, waits=True)
    return f"{waits}.wait_stream({_expression(first, frame)}) between them"


def _place(access: Access) -> str:
    if access.place is None:
        return "in a thread of torch's"
    return ("backward of " if access.phase == BACKWARD else "") + _line(access.place)


def _line(place: Place) -> str:
    file, number = place
    code = linecache.getline(file, number).strip()
    where = f"line {number}" + (f" of {os.path.basename(file)}" if os.path.exists(file) else "")  # a cell is no file
    return f"{where}, {code}" if code else where


def _variable(stream: Timeline, frame: Any) -> str:
    """How the user calls a stream, from the innermost function to the outermost."""
    while frame is not None:
        names = frame.f_locals
        called = [name for space in (names, frame.f_globals) for name, value in space.items() if value is stream]
        # Before Python 3.13 that is a copy of a function's variables, which the frame keeps, and them alive. (Unless
        # it had one already, for a call of locals().)
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(names) is dict and sys.getrefcount(names) <= _OURS:
            names.clear()
        if called := [name for name in called if not name.startswith("_")]:
            return called[0]
        frame = frame.f_back
    return ""


def _label(access: Access, frame: Any) -> str:
    stream = access.stream
    if stream is Host:
        return "on the host"
    name = _variable(stream, frame)
    said = f"in stream {name}" if name and not stream.name.startswith("the ") else f"in {stream.name}"
    gpu = getattr(stream, "gpu", access.gpu)
    return said + (f" of GPU {gpu}" if gpu != access.gpu != HOST else "")


def _expression(access: Access, frame: Any, waits: bool = False) -> str:
    stream = access.stream
    if name := _variable(stream, frame):
        return name
    if stream.name == "the default stream":
        return f"torch.simgpu.{'current' if waits else 'default'}_stream({getattr(stream, 'gpu', access.gpu)})"
    return "torch.simgpu.current_stream()" if waits else "that stream"


_COPIES = ("copy", "copy to host", "copy from host")


class Races:
    """The races that have been found between the beginning and the end of ``with simgpu.races()``.

    Attributes:
        found: one for each pair of lines, in the order in which they were found. ``str(race)`` is the report.
    """

    def __init__(self, stop: bool = False) -> None:
        self.found: list[Race] = []
        self.order = Ordering()
        self._stop = stop
        self._freed: dict[tuple[Timeline | None, int], list[list[Access]]] = {}
        self._pinned: dict[int, tuple[weakref.ref, History]] = {}
        self._futures: Order = {}
        self._where_forward_ran: set[Timeline] = set()
        self._mode = _HostAccesses(self)

    def __enter__(self) -> Races:
        if happens_before.watching is not None:
            raise RuntimeError("simgpu.races() looks already: one at a time")
        happens_before.watching = self
        self._mode.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        happens_before.watching = None
        self._mode.__exit__(*exc)
        self._freed.clear()
        self._pinned.clear()

    def __iter__(self) -> Iterator[Race]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __repr__(self) -> str:
        if not self.found:
            return "no race: all work on the same memory is in order"
        return "\n\n".join(map(str, self.found))

    # --- What happens on the GPUs ---------------------------------------------------------------------------

    def launched(
        self,
        work: Work,
        reads: Iterable[Any],
        writes: Iterable[Any],
        *,
        after: Iterable[Timeline] = (),
        host_waits: bool | None = None,
        waited: str = "stream",
        pinned: torch.Tensor | None = None,
    ) -> Order:
        """Some work has joined its streams; what it reads and writes.

        Args:
            after: streams for which it waits besides.
            host_waits: the host surely waits for it. None: if the work says so.
            waited: see ``Access``.
            pinned: the tensor on the host that a copy reads or writes while the host goes on.

        Returns:
            What comes before those who wait for it.
        """
        with self.order.lock:
            name, queues = work.name, work.queues
            number, before = self.order.begin((*queues, *work.followers, *after))
            place, races = place_now(), len(self.found)
            phase = phase_now()
            made: list[tuple[History, Access]] = []
            for tensors, writing in ((reads, False), (writes, True)):
                for tensor in tensors:
                    if tensor.numel():
                        extent, shape = Extent.of(tensor.raw), tuple(tensor.shape)
                        about = (number, queues[0], tensor.gpu, name, writing, phase, extent, shape, place, waited)
                        made.append((self._history(tensor.allocation), Access(*about)))
            if pinned is not None and pinned.numel():
                extent, history = Extent.of(pinned), self._history_of_pinned(pinned)
                about = (number, queues[0], HOST, name, not writes, phase, extent, tuple(pinned.shape), place, "host")
                made.append((history, Access(*about)))
            for history, access in made:
                self._check(history, access, before)
            for history, access in made:
                history.add(access, before)
            order = self.order.end(number, before, queues, work.followers)
            if work.host_waits if host_waits is None else host_waits:
                self.order.host_waits(order)
        self._maybe_stop(races)
        return order

    def _history(self, allocation: Any) -> History:
        history = allocation.history
        if history is None or history.watch is not self:
            history = allocation.history = History(self, None)
        return history

    def _check(self, history: History, access: Access, before: Order) -> None:
        for kind, others in (("memory", history.before), ("order", history.accesses)):
            for old in others:
                if old.after(before) or not access.conflicts(old):
                    continue
                if kind == "order" and self._is_in_order(old, access, history):
                    pass
                elif kind == "order" or access.writes:
                    self._report("host" if old.waited == access.waited == "host" else kind, old, access)
                before[old.stream] = max(before.get(old.stream, 0), old.number)  # one missing wait, one report
        if access.writes and history.before:
            history.before = [old for old in history.before if not old.after(before)]

    def _is_in_order(self, old: Access, access: Access, history: History) -> bool:
        """Is it in order by what C++ does without telling us?"""
        if not in_backward():
            return False
        if old.after(self._futures):  # DistributedDataParallel has waited for it
            return True
        if access.writes:
            return False
        kept = [old, *(other for other in history.accesses if not other.writes and other.number > old.number)]
        forward = [access for access in kept if access.phase == FORWARD and access.waited == "stream"]
        kept = [access for access in forward if access.name not in _COPIES]
        self._where_forward_ran.update(access.stream for access in kept)
        return bool(kept)

    def after_backward(self, streams: Iterable[Timeline]) -> None:
        """Backward has run in ``streams``. On CUDA it runs where its forward ran: what comes there is after it, too."""
        for stream in streams:
            for other in self._where_forward_ran:
                self.order.wait(other, self.order.of(stream))
        self._where_forward_ran.clear()

    def _report(self, kind: str, first: Access, second: Access) -> None:
        race = Race(kind, *describe(kind, first, second, users_frame()))
        for known in self.found:
            if known == race:
                known.times += 1
                return
        self.found.append(race)

    def _maybe_stop(self, before: int) -> None:
        if self._stop and len(self.found) > before:
            raise RaceError(str(self.found[before]))

    # --- Memory ---------------------------------------------------------------------------------------------

    def taken(self, allocation: Any) -> None:
        """Memory has been allocated, in the stream that is the current one now."""
        home = current().current_stream(allocation.memory.gpu)
        with self.order.lock:
            again = self._freed.get((home, allocation.nbytes))
            allocation.history = History(self, home, again.pop(0) if again else ())

    def freed(self, allocation: Any) -> None:
        """Memory goes back to the stream in which it was allocated."""
        history = allocation.history
        if history is None or history.watch is not self or history.home is None:
            return
        with self.order.lock:
            order = self.order.of(history.home)
            used = [
                access
                for access in (*history.accesses, *history.before)
                if access.stream is not history.home
                and access.stream not in history.recorded
                and access.waited != "wait()"
                and not access.after(order)
            ]
            if used:
                self._freed.setdefault((history.home, allocation.nbytes), []).append(used)

    def record_stream(self, allocation: Any, stream: Timeline) -> None:
        """The allocator shall wait for this stream, too, before it gives the memory to others."""
        self._history(allocation).recorded.add(stream)

    def future(self, order: Order | None) -> None:
        """Somebody has a future of what has this order."""
        self._futures = joined(self._futures, order)

    # --- The host -------------------------------------------------------------------------------------------

    def _history_of_pinned(self, tensor: torch.Tensor) -> History:
        storage = tensor.untyped_storage()
        key = address_of(storage)
        if key not in self._pinned:
            gone = weakref.ref(storage, lambda _: self._pinned.pop(key, None))
            self._pinned[key] = gone, History(self, None)
        return self._pinned[key][1]

    def host_uses(self, tensor: torch.Tensor, name: str, writes: bool) -> None:
        """The host reads or writes a tensor in its memory."""
        key = address_of(tensor.untyped_storage())
        _, history = self._pinned.get(key, (None, None))
        if history is None or not tensor.numel():
            return
        with self.order.lock:
            races = len(self.found)
            about = (0, Host, HOST, name, writes, FORWARD, Extent.of(tensor), tuple(tensor.shape), place_now(), "host")
            access = Access(*about)
            for old in history.accesses:
                if not old.after(self.order.host) and access.conflicts(old):
                    self._report("host", old, access)
                    self.order.host_waits({old.stream: old.number})
            history.accesses = [old for old in history.accesses if not old.after(self.order.host)]
            if not history.accesses:
                del self._pinned[key]
        self._maybe_stop(races)


class _HostAccesses(TorchDispatchMode):
    """Sees what this thread does with tensors on the CPU: is one of them pinned, and a copy still at work on it?"""

    def __init__(self, races: Races) -> None:
        super().__init__()
        self._races = races

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._races._pinned and not func.is_view and func.namespace == "aten":
            self._look(func, args, kwargs)
        return func(*args, **kwargs)

    def _look(self, func: Any, args: tuple, kwargs: dict) -> None:
        name = packet_of(func).__name__
        tensors = [(tensor, i) for i, arg in enumerate(args) for tensor in tensors_in(arg)]
        if name == "is_pinned" or any(tensor.device.type == "simgpu" for tensor, _ in tensors):
            return
        writes = {i for i, each in enumerate(schema_of(func).arguments) if each.alias_info and each.alias_info.is_write}
        for tensor, i in tensors:
            if tensor.device.type == "cpu" and type(tensor) in (torch.Tensor, torch.nn.Parameter):
                self._races.host_uses(tensor, name, i in writes)


def races(stop: bool = False) -> Races:
    """Look for races between streams: ``with simgpu.races() as races: …``, then ``print(races)`` or ``races.found``.

    It sees what runs inside the block on the simulated GPUs of this process (of a rank: on its own GPU), from all
    threads; and what this thread's operators do with pinned memory while a ``non_blocking`` copy is at work on it.

    It does not see: races between threads or processes of the host; what happens before the block; numpy's and C's
    view of pinned memory; how real kernels share memory among themselves.

    Args:
        stop: raise a ``RaceError`` at the first race.
    """
    return Races(stop)
