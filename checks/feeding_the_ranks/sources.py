"""What a stream reads from, in the process itself and in the workers of a loader: it counts who reads what."""

from __future__ import annotations

from typing import Any

from checks.feeding_the_ranks import epochs

WORKERS = 3  # at most


class Source:
    """What a stream reads from, a sample at a time. It counts who reads what; nobody sees how."""

    __slots__ = ("__dict__", "_length", "_none", "_reads", "_secret", "_talks")

    def __init__(self, secret: int, length: int, none: int = -1) -> None:
        import torch

        self._length, self._secret, self._none = length, secret, none
        self._reads, self._talks = (torch.zeros(size).share_memory_() for size in ((1 + WORKERS, length + 1), (1,)))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int | None:
        from torch.utils.data import get_worker_info

        if self._secret < 0:
            raise Unreadable(f"sample {index} cannot be read")
        if isinstance(index, slice):
            raise TypeError("samples are read one at a time: source[i] with a whole number i")
        if not 0 <= index < self._length:
            raise IndexError(f"there is no sample {index}: they go from 0 to {self._length - 1}")
        info = get_worker_info()
        self._reads[0 if info is None else 1 + info.id, index] += 1
        return None if index == self._none else epochs.code(self._secret, index, 0, False)

    def reads(self) -> list[int]:
        """By the process itself, by worker 0, by worker 1, …"""
        return [int(count) for count in self._reads.sum(1)]

    def twice(self, given: int) -> bool:
        """Whether samples were read more than once, and no others than the ``given`` ones."""
        times = self._reads.sum(0)
        return bool((times > 1).any() and (times > 0).sum() == given)

    def talks(self) -> bool:
        """Whether a worker has used a collective or sent a message."""
        return bool(self._talks)

    def in_worker(self, _: int) -> None:
        """In a worker, at its beginning. It has no part in the ranks' communication, and would wait for ever."""
        import signal

        import torch.distributed as dist

        from checks.contracts.launches import METHODS
        from checks.contracts.watch import AT_LEAST

        signal.setitimer(signal.ITIMER_VIRTUAL, AT_LEAST)  # its handler is there already, from the process

        def talk(*_: Any, **__: Any) -> Any:
            self._talks += 1
            return _Done()

        for method in METHODS:
            if method in vars(dist.ProcessGroup):
                setattr(dist.ProcessGroup, method, talk)


class Unreadable(OSError, LookupError, ValueError):
    """Whoever takes one kind of error for something else takes this one too."""


class _Done:
    """What a collective in a worker returns: nothing has happened."""

    def wait(self, *_: Any) -> bool:
        return True
