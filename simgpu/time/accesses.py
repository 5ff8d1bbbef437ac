"""Who reads and writes which bytes of a simulated storage, in which line, and whether two of them touch the same."""

from __future__ import annotations

import math
import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from simgpu._torch import no_dispatch
from simgpu.time.happens_before import Order
from simgpu.time.work import Timeline

_OURS = (
    os.path.dirname(path) + os.sep
    for path in (os.path.dirname(__file__), os.path.dirname(str(torch.__file__)), sysconfig.__file__)
)
_NOT_THE_USERS = (*_OURS, "<frozen")
_MOST_ELEMENTS = 1 << 24
"""Storages above this are not looked at element by element; see ``Extent.meets``."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes of a storage that a tensor uses, from ``low`` to ``high``; ``dense``: all of them.

    Args:
        offset, shape, strides: in elements of ``itemsize`` bytes, without dimensions of one element and repeated ones.
    """

    low: int
    high: int
    dense: bool
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Extent:
        """That of a plain tensor."""
        dims = [(n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1 and step]
        shape, strides = tuple(n for n, _ in dims), tuple(step for _, step in dims)
        reach = 1 + sum((n - 1) * int(step) for n, step in dims)
        offset, size = int(tensor.storage_offset()), tensor.element_size()
        low = offset * size
        high = low + (reach * size if tensor.numel() else 0)
        return cls(low, high, math.prod(shape) == reach, offset, shape, strides, size)

    def covers(self, other: Extent) -> bool:
        """Does it use all that the other uses, as far as one can tell quickly?"""
        return self == other or (self.dense and self.low <= other.low and self.high >= other.high)

    def meets(self, other: Extent) -> bool:
        """Do they share a byte? (Views with gaps in very large storages, such as columns: only if they are equal.)"""
        if self.low >= other.high or other.low >= self.high:
            return False
        if (self.dense and other.dense) or self == other:
            return True
        if max(self.high, other.high) > _MOST_ELEMENTS:
            return False
        with no_dispatch():
            nbytes = max(self.high, other.high)
            return bool((self._bytes(nbytes) & other._bytes(nbytes)).any())

    def _bytes(self, nbytes: int) -> torch.Tensor:
        used = torch.zeros(nbytes, dtype=torch.bool, device="cpu")
        strides = [step * self.itemsize for step in self.strides]
        used.as_strided([*self.shape, self.itemsize], [*strides, 1], self.low).fill_(True)
        return used


Place = tuple[str, int]
"""A line of the user's code: file and number."""


def place_now() -> Place | None:
    """The innermost line that is neither torch's nor ours; None in a thread of torch's."""
    frame = users_frame()
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno)


def users_frame() -> FrameType | None:
    """The innermost frame that is neither torch's nor ours; None in a thread of torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return frame


@dataclass(slots=True, eq=False)
class Access:
    """One piece of work reads or writes a tensor.

    Args:
        number: of the work, among all.
        stream, gpu: where it runs.
        name: the operator, "copy", or the collective.
        writes: it writes (and may read, too).
        phase: "forward", "backward", "optimizer" or "communication".
        extent: the bytes.
        shape: of the tensor.
        place: the line of the user's code.
        waited: what somebody calls to wait for it: "stream"; "wait()" of an asynchronous collective; "host" for a copy.
    """

    number: int
    stream: Timeline
    gpu: int
    name: str
    writes: bool
    phase: str
    extent: Extent
    shape: tuple[int, ...]
    place: Place | None
    waited: str = "stream"

    def conflicts(self, other: Access) -> bool:
        """Would it matter which of them comes first?"""
        return (self.writes or other.writes) and self.number != other.number and self.extent.meets(other.extent)

    def after(self, order: Order) -> bool:
        """Does what has this order surely come after it?"""
        return order.get(self.stream, 0) >= self.number


class History:
    """The accesses to one storage that later ones may conflict with.

    Args:
        watch: the ``Races`` that it belongs to; those of others are over.
        home: the stream in which it was allocated, to which its memory goes back.
        before: what used the same memory when its last owner gave it back.
    """

    __slots__ = ("accesses", "before", "home", "recorded", "watch")

    def __init__(self, watch: Any, home: Timeline | None, before: Iterable[Access] = ()) -> None:
        self.watch = watch
        self.home = home
        self.accesses: list[Access] = []
        self.before = list(before)
        self.recorded: set[Timeline] = set()
        """Streams that ``record_stream`` has named."""

    def add(self, access: Access, order: Order) -> None:
        """Add one, of which ``order`` says what comes before. What comes before and is covered need not be kept."""
        self.accesses = [
            old
            for old in self.accesses
            if not (
                (access.writes or not old.writes)
                and old.number != access.number
                and old.after(order)
                and access.extent.covers(old.extent)
            )
        ]
        self.accesses.append(access)
