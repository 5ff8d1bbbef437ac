"""What a collective returns: ``wait()`` makes this GPU's current stream wait, and the host goes on, as under NCCL."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import Work as TorchWork
from torch.utils.weak import TensorWeakRef

from simgpu.ranks.cluster import here
from simgpu.time import happens_before
from simgpu.time.work import Timeline, Work

_alive: deque = deque(maxlen=512)  # C++ finds the methods below only as long as their object lives
_until_end_of_backward: list[Callable[[], Any]] = []


def stream_waits(work: Work) -> None:
    """What joins the current stream from now on begins only when ``work`` is done."""
    cluster = here()
    stream = cluster.current_stream()

    def follow(_lane: object) -> None:
        if overlap is None:
            stream.reach(work.end)
        else:
            overlap.wait(stream, work)

    overlap = cluster.overlap
    cluster.clock.act(follow, cluster.first)
    happens_before.stream_waits(stream, work.order)


class Overlap:
    """What ``overlapped`` keeps: each communication that a stream waits for, with the stream and its time then."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self._waited: list[tuple[Work, Timeline, float]] = []

    def first(self, work: Work) -> float:
        """When its first part is done."""
        return work.start + work.seconds / self.chunks

    def wait(self, stream: Timeline, work: Work) -> None:
        """For the first part only; for the others when the block ends."""
        stream.reach(self.first(work))
        self._waited.append((work, stream, stream.time))

    def end(self) -> None:
        """What followed a communication is done one part after that."""
        reached = {stream: stream.time for _, stream, _ in self._waited}
        for work, stream, began in self._waited:
            stream.reach(work.end + (reached[stream] - began) / self.chunks)


@contextmanager
def overlapped(chunks: int = 8) -> Iterator[None]:
    """``with simgpu.overlapped(): …`` on a rank: a product and the collective before or behind it go in parts.

    So run asynchronous tensor parallelism, and libraries that send from buffers of their own (user buffers of
    Transformer Engine): while one part is multiplied, the next one travels. The program stays as it is. Inside, a
    collective begins with the first part of what it sends, and ends one part after the last is made; what waits for a
    collective begins with its first part, and is done one part after its last has come. So the two together take the
    longer one's time and a part of the other's. Assumed: products in parts are as fast as in one, and copy engines
    carry them, which leave the multiprocessors alone.

    Args:
        chunks: parts, at least 1; usual is one for each rank.
    """
    if chunks < 1:
        raise ValueError(f"chunks must be at least 1, not {chunks}")
    cluster = here()
    before, cluster.overlap = cluster.overlap, Overlap(chunks)
    try:
        yield
    finally:
        overlap, cluster.overlap = cluster.overlap, before
        cluster.clock.act(lambda _lane: overlap.end(), cluster.first)


class SimWork(TorchWork):
    """A communication under way.

    Args:
        finish: gives its place in simulated time, for which it may have to wait for the other rank.
        result: the tensors that it writes. (It keeps none of them in memory: many programs never wait, and let go.)
        order: what comes before those who wait for it, while somebody looks for races.
    """

    def __init__(self, finish: Callable[[], Work], result: list, order: Any = None) -> None:
        super().__init__()
        self._order = order
        self._finish, self._result = finish, [TensorWeakRef(tensor) for tensor in result]
        _alive.append(self)

    def wait(self, timeout: Any = None) -> bool:
        stream_waits(self._finish())
        return True

    def is_completed(self) -> bool:
        happens_before.host_waits(self._order)
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> list:
        return [tensor for reference in self._result if (tensor := reference()) is not None]

    def get_future(self) -> Future:
        """A future that is done, though in simulated time it is not: what reads the tensors waits for them.

        DistributedDataParallel waits for such futures in C++ at the end of backward, without telling us.
        """
        finish = self._finish
        if happens_before.watching is not None:
            happens_before.watching.future(self._order)
        _until_end_of_backward.append(lambda: stream_waits(finish()))
        future = Future(self._order)
        future.set_result(self.result())
        return future


class Future(torch.futures.Future):
    """Callbacks run on a stream of their own, as those of CUDA's futures do: the backward pass goes on meanwhile."""

    def __init__(self, order: Any = None) -> None:
        super().__init__()
        self._order = order

    def wait(self) -> Any:
        happens_before.stream_waits(here().current_stream(), self._order)
        return super().wait()

    def then(self, callback: Callable[[torch.futures.Future], Any]) -> Future:
        done = Future()
        with here().stream_of("callbacks of futures") as stream:
            happens_before.stream_waits(stream, self._order)
            try:
                done.set_result(callback(self))
            except Exception as error:
                done.set_exception(error)
            if happens_before.watching is not None:
                done._order = happens_before.recorded(stream)
                happens_before.watching.future(done._order)
        _until_end_of_backward.append(lambda: here().current_stream().wait_stream(stream))
        return done


def after_backward() -> None:
    """The stream waits for the collectives whose futures have been taken."""
    while _until_end_of_backward:
        _until_end_of_backward.pop(0)()


def forget_unfinished() -> None:
    """A new process group begins afresh: what a failed program has left under way will never end."""
    here().forget_groups()
    _until_end_of_backward.clear()
