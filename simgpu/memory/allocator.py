"""The memory of one simulated GPU: who holds how many bytes, and what happens when there are not enough.

Bytes are counted once for each storage (a view holds none of its own) and rounded up to blocks of 512 bytes, as
PyTorch's caching allocator for CUDA does. What that allocator holds back besides is in ``caching``. Left out: the CUDA
context, workspaces of cuBLAS and cuDNN (cuBLAS's: 65 MiB on an H200, measured with torch 2.11, 2026).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch

from simgpu._torch import address_of
from simgpu.memory.caching import CachingAllocator
from simgpu.time import happens_before
from simgpu.time.clock import Clock
from simgpu.time.phases import in_optimizer
from simgpu.time.work import Stamp, Timeline, Work

BLOCK_BYTES = 512
"""Every allocation is a multiple of this (kMinBlockSize in PyTorch's c10/cuda/CUDACachingAllocator)."""

KINDS = ("parameters", "gradients", "optimizer state", "activations", "other")
PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, OTHER = KINDS
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
        capacity: bytes that the GPU has.
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
