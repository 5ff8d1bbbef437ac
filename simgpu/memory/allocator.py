"""The memory of one simulated GPU: who holds how many bytes, and what happens when there are not enough.

Bytes are counted once for each storage (a view holds none of its own) and rounded up to blocks of 512 bytes, as
PyTorch's caching allocator for CUDA does. What that allocator holds back besides is below. What this
model leaves out: the CUDA context, workspaces of cuBLAS and cuDNN (cuBLAS's: 65 MiB on an
H200, measured with torch 2.11, 2026).

What torch's caching allocator keeps of a GPU's memory: "reserved" in ``torch.cuda.memory_summary()``.

It asks CUDA for large segments, cuts them into blocks, and never gives a segment back. A freed block serves only the
stream and the pool (up to 1 MiB, or above) that it was taken for, and only what fits into it. What other streams have
used (``tensor.record_stream``) serves again only when they are done with all that they had to do when it was freed; the
allocator looks whenever somebody asks for memory. So more is reserved than allocated: ``Profile.peak_reserved`` says
how much. It follows c10/cuda/CUDACachingAllocator.cpp of torch 2, without
what that does when memory runs out.
"""

from __future__ import annotations

import bisect
import heapq
import math
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from simgpu._torch import address_of
from simgpu.time import happens_before
from simgpu.time.clock import in_optimizer
from simgpu.time.work import Stamp

if TYPE_CHECKING:
    from simgpu.time.clock import Clock
    from simgpu.time.work import Timeline, Work


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
        found = pool.best(nbytes)
        while found is None:
            self._grow(pool, nbytes, small)
            found = pool.best(nbytes)
        start, size = found
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


BLOCK_BYTES = 512
"""Every allocation is a multiple of this (kMinBlockSize in PyTorch's c10/cuda/CUDACachingAllocator)."""

PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, OTHER = KINDS = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "other",
)
"""What memory is used for. "other": inputs, buffers, and what backward and the optimizer need for a moment."""

_lock = threading.RLock()  # re-entrant: the garbage collector may free one storage while another is allocated


def kind_now() -> str:
    """What memory that is allocated now is used for, as far as one can tell by now."""
    return ACTIVATIONS if torch.is_grad_enabled() and not in_optimizer() else OTHER


def rounded(nbytes: int) -> int:
    """Bytes that the allocator takes for a request of ``nbytes``: the next multiple of 512."""
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES


def readable(nbytes: float) -> str:
    """Bytes as CUDA's messages print them: "512 bytes", "1.50 KiB", "20.00 MiB", "79.11 GiB"."""
    if nbytes < 1024:
        return f"{nbytes:.0f} bytes"
    power = min(3, int(math.log(nbytes, 1024)))
    return f"{nbytes / 1024**power:.2f} {('KiB', 'MiB', 'GiB')[power - 1]}"


class Label:
    """What an allocation is used for. It may become known later: a gradient is just bytes while it is computed."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


class Allocation:
    """One storage on a simulated GPU. Its bytes are given back when the last tensor that uses it is gone.

    Args:
        memory: the ledger of the GPU that holds it.
        storage: the host storage with the numbers (or the shapes) behind it.
        kind: one of ``KINDS``.
    """

    __slots__ = (
        *("__weakref__", "address", "history", "label", "last_write", "memory", "nbytes", "pointer"),
        *("provisional", "storage", "used_on"),
    )

    def __init__(self, memory: Memory, storage: torch.UntypedStorage, kind: str) -> None:
        self.nbytes = self.pointer = 0  # nothing to give back if the next lines raise
        self.memory = memory
        self.label = Label(kind)
        self.storage = storage
        self.address = address_of(storage)
        self.last_write: Work | None = None
        self.provisional: Any = None
        self.history: Any = None  # of reads and writes, while somebody looks for races
        self.used_on: dict[Timeline, None] = {}  # the streams that ``record_stream`` has named
        memory.take(self, rounded(storage.nbytes()))

    def move_to(self, memory: Memory) -> None:
        """Count it on another GPU from now on (used when the first guess of the GPU was wrong)."""
        nbytes = self.nbytes
        self._give_back()
        self.memory = memory
        memory.take(self, nbytes)

    def resize(self, nbytes: int) -> None:
        """The storage gets another size in place: 0 frees it, as FSDP2 does with gathered parameters."""
        self._give_back()
        self.memory.take(self, rounded(nbytes))
        self.storage.resize_(nbytes)

    def _give_back(self) -> None:
        if self.nbytes:
            self.memory.give_back(self)
            self.nbytes = 0
            self.used_on = {}

    def __del__(self) -> None:
        # At interpreter shutdown modules may be gone already; there is nothing left to count then.
        if threading is not None and getattr(self, "nbytes", 0) > 0:
            self._give_back()


class Change(Stamp):
    """Bytes that were allocated (or freed: below zero), what for, at which address, for work on which stream, and when.

    ``after``: what other streams had to do when they were freed, which ``record_stream`` has named. (One object and not
    two: a profile keeps thousands, and Python's collector looks at each.)
    """

    __slots__ = ("address", "after", "label", "nbytes", "user")

    def __init__(self, stream: Timeline, nbytes: int, label: Label, address: int, user: Hashable) -> None:
        super().__init__(stream)
        self.nbytes, self.label, self.address, self.user = nbytes, label, address, user
        self.after: tuple[Stamp, ...] = ()


class Memory:
    """The ledger of one GPU.

    Args:
        gpu: number of the GPU in the cluster.
        capacity: bytes that it has.
        clock, stream: say when something is allocated and freed: in the order of the GPU's stream, as CUDA's
            allocator sees it.
        name: the hardware's name, for messages.
    """

    def __init__(self, gpu: int, capacity: int, clock: Clock, stream: Timeline, name: str) -> None:
        self.gpu = gpu
        self.stream = stream
        self.capacity = capacity
        self.clock = clock
        self.name = name
        self.allocated = 0
        self.peak = 0
        self.taken = 0  # in all, given back or not
        self.recorders: list[list[Change]] = []  # a list for each running profile
        self.current_stream: Callable[[], Hashable] = lambda: stream
        """Where work goes that is launched now: what is allocated for one stream, only that one gets again."""
        self.cache = CachingAllocator()
        self._next_pointer = gpu + 1 << 44
        self.living: dict[int, tuple[Label, int]] = {}
        """What is allocated: label and bytes by the storage's address (not the allocation: it would live on)."""

    def take(self, allocation: Allocation, nbytes: int) -> None:
        """Count ``nbytes`` (rounded already) for ``allocation``.

        Raises:
            torch.OutOfMemoryError: the GPU has not that much left. Nothing is counted then.
        """
        with _lock:
            self.require(nbytes)
            self.allocated += nbytes
            self.taken += nbytes
            allocation.nbytes = nbytes
            allocation.pointer = self._next_pointer
            self._next_pointer += nbytes
            if nbytes:
                self.cache.take(allocation.address, nbytes, self.current_stream())
            self.living[allocation.address] = (allocation.label, nbytes)
            self.peak = max(self.peak, self.allocated)
            if happens_before.watching is not None:
                happens_before.watching.taken(allocation)
            if self.recorders:
                self._record(nbytes, allocation)

    def require(self, nbytes: int, beside: int = 0) -> None:
        """Raise torch.OutOfMemoryError if ``nbytes`` more do not fit, ``beside`` so many that are about to be taken."""
        held = self.allocated + beside
        if held + nbytes > self.capacity:
            raise torch.OutOfMemoryError(
                f"simgpu out of memory. Tried to allocate {readable(nbytes)}. GPU {self.gpu} (simulated {self.name}) "
                f"has a total capacity of {readable(self.capacity)} of which {readable(self.capacity - held)} is free. "
                f"{readable(held)} is allocated by PyTorch. Use a smaller batch, recompute activations "
                "(torch.utils.checkpoint), or split the model over more GPUs."
            )

    def give_back(self, allocation: Allocation) -> None:
        """Take an allocation's bytes off the ledger."""
        with _lock:
            self.allocated -= allocation.nbytes
            self.living.pop(allocation.address, None)
            self.cache.give_back(allocation.address)
            if happens_before.watching is not None:
                happens_before.watching.freed(allocation)
            if self.recorders:
                self._record(-allocation.nbytes, allocation)

    def _record(self, nbytes: int, allocation: Allocation) -> None:
        change = Change(self.stream, nbytes, allocation.label, allocation.address, self.current_stream())
        self.clock.stamp(self.gpu, change)
        if nbytes < 0 and allocation.used_on:
            change.after = tuple(map(Stamp, allocation.used_on))
            for stamp in change.after:
                self.clock.stamp(self.gpu, stamp)
        for recorder in self.recorders:
            recorder.append(change)
