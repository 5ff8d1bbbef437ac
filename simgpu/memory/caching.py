"""What torch's caching allocator keeps of a GPU's memory: "reserved" in ``torch.cuda.memory_summary()``.

It asks CUDA for large segments, cuts them into blocks, and never gives a segment back. A freed block serves only the
stream and the pool (up to 1 MiB, or above) that it was taken for, and only what fits into it. What other streams have
used (``tensor.record_stream``) serves again only when they are done with all that they had to do when it was freed; the
allocator looks whenever somebody asks for memory. So more is reserved than allocated: ``Profile.peak_reserved`` says
how much. It follows c10/cuda/CUDACachingAllocator.cpp of torch 2, without what that does when memory runs out.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Hashable
from dataclasses import dataclass, field

MIB = 2**20
SMALL = MIB
"""Requests up to this come from segments of 2 MiB; larger ones, below 10 MiB, from segments of 20 MiB."""


@dataclass(slots=True)
class _Pool:
    """Addresses of one stream's small, or large, blocks. Free ones are known by size, and by both of their ends."""

    end: int = 0
    by_size: list[tuple[int, int]] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    segments: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)

    def add(self, start: int, size: int) -> None:
        """A block becomes free, and one with its free neighbours."""
        if start in self.starts:
            before = self.starts[start]
            size += self.remove(before)
            start = before
        if start + size in self.sizes:
            size += self.remove(start + size)
        bisect.insort(self.by_size, (size, start))
        self.sizes[start], self.starts[start + size] = size, start

    def best(self, size: int) -> tuple[int, int] | None:
        """Take the smallest free block with so many bytes: its start and size."""
        place = bisect.bisect_left(self.by_size, (size, 0))
        if place == len(self.by_size):
            return None
        start = self.by_size[place][1]
        return start, self.remove(start)

    def tail(self) -> int:
        """Free bytes at the end of its addresses."""
        return self.end - self.starts.get(self.end, self.end)

    def remove(self, start: int) -> int:
        """Take a free block out; its size."""
        size = self.sizes.pop(start)
        del self.starts[start + size]
        self.by_size.remove((size, start))
        return size


class CachingAllocator:
    """Blocks of one GPU, as requests come and go.

    Args:
        expandable: one segment for each pool, which grows (``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``).

    Attributes:
        reserved, peak, taken: bytes in segments: now, at most, and all that there have been.
    """

    def __init__(self, expandable: bool = False) -> None:
        self.expandable = expandable
        self.reserved = self.peak = self.taken = self._freed = 0
        self._pools: dict[tuple[Hashable, bool], _Pool] = {}
        self._blocks: dict[Hashable, tuple[_Pool, int, int]] = {}
        self._in_use: list[tuple[float, int, tuple[_Pool, int, int]]] = []  # until when, which, by other streams

    def take(self, key: Hashable, nbytes: int, stream: Hashable, now: float = math.inf) -> None:
        """A block of ``nbytes``, a multiple of 512, for work on ``stream``; the host asks at the time ``now``."""
        while self._in_use and self._in_use[0][0] <= now:
            pool, start, size = heapq.heappop(self._in_use)[-1]
            pool.add(start, size)
        small = nbytes <= SMALL
        pool = self._pools.setdefault((stream, small), _Pool())
        block = pool.best(nbytes)
        while block is None:
            self._grow(pool, nbytes, small)
            block = pool.best(nbytes)
        start, size = block
        if size - nbytes >= (512 if small else SMALL + 1):
            pool.add(start + nbytes, size - nbytes)
            size = nbytes
        self._blocks[key] = pool, start, size

    def give_back(self, key: Hashable, until: float | None = None) -> None:
        """The block of this key is free again, or at the time ``until``, when other streams are done with it."""
        block = self._blocks.pop(key)
        if until is None:
            block[0].add(*block[1:])
        else:
            self._freed += 1
            heapq.heappush(self._in_use, (until, self._freed, block))

    def empty(self) -> None:
        """Give back to CUDA the segments of which no part is in use."""
        for pool in self._pools.values():
            for start, size in list(pool.segments.items()):
                if pool.sizes.get(start) == size:
                    self.reserved -= pool.remove(start)
                    del pool.segments[start]

    def _grow(self, pool: _Pool, nbytes: int, small: bool) -> None:
        page = 2 * MIB if small else 20 * MIB
        if self.expandable:
            start, size = pool.end, _up(nbytes - pool.tail(), page)
        else:  # a segment of its own: it never becomes one with its neighbour
            start, size = pool.end + 1, page if nbytes < 10 * MIB else _up(nbytes, 2 * MIB)
            pool.segments[start] = size
        pool.end = start + size
        pool.add(start, size)
        self.reserved += size
        self.taken += size
        self.peak = max(self.peak, self.reserved)


def _up(nbytes: int, page: int) -> int:
    return -(-nbytes // page) * page
