"""What a race says to the reader: who does what, where, and what would put the two in order."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from simgpu.accesses import Access, Place
from simgpu.phases import BACKWARD
from simgpu.work import Timeline

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
        found = [name for space in (names, frame.f_globals) for name, value in space.items() if value is stream]
        # Before Python 3.13 that is a copy of a function's variables, which the frame keeps, and them alive. (Unless
        # it had one already, for a call of locals().)
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(names) is dict and sys.getrefcount(names) <= _OURS:
            names.clear()
        if found := [name for name in found if not name.startswith("_")]:
            return found[0]
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
