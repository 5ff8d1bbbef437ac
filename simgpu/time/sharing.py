"""What communication leaves of a GPU: kernels that run beside a collective of NCCL are slower.

NCCL's collectives are kernels, too. Each of their channels (``simgpu.time.nccl.channels``) is a block that has a
multiprocessor for itself; and what is sent and received is read from and written to the GPU's memory. Beside them

- what its products limit takes 1 / (1 − the share of the multiprocessors) of its time,
- what memory limits takes 1 / (1 − the share of the bandwidth),

for that part of it that runs at the same time. Left out: the collective's own slow-down; that it keeps its
multiprocessors while it waits for other ranks; the last wave of a product that would just have fitted. Copies take copy
engines, and single messages (send, recv) few channels: they are taken to leave everything.

A host that runs ahead launches kernels first and, later, a collective that runs at the same time on another stream.
Then the kernels are put into their places anew. That is exact for their stream. An event between them keeps its time,
and what has waited for them in another stream, on another rank by a message, or as a collective over other links stays
where it is. (A collective over the same links does not need to move: it waits behind the earlier ones.)
``simgpu.cluster(sharing=False)`` switches all of it off.

Sources: S. Jeaugey, NVIDIA/nccl issue 689 (2022 to 2024), on one multiprocessor for a channel, not shared with others.
Kernels of GPTs and Llamas took 1.19 times as long on average beside collectives, at most 1.4 times, on four A100, H100
and GPUs of AMD: Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning (2025).
"""

from __future__ import annotations

from collections import deque

from simgpu.time.work import Kernel, Share, Timeline, Work

KEPT = 256  # collectives; what ran beside earlier ones is in its place


class Sharing:
    """The collectives and the latest kernels of one GPU."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, float, Share]] = deque(maxlen=KEPT)
        self._last = 0.0
        self._kernels: dict[Timeline, deque[Work]] = {}

    def end(self, start: float, kernel: Kernel) -> float:
        """When a kernel ends that begins at ``start``."""
        if start >= self._last:
            return start + kernel.seconds
        taken = [interval for interval in self._taken if interval[1] > start]
        changes = sorted({moment for begin, end, _ in taken for moment in (begin, end) if moment > start})
        left = 1.0
        for until in changes:
            seconds = kernel.beside([share for begin, end, share in taken if begin <= start < end])
            if start + left * seconds <= until:
                return start + left * seconds
            left -= (until - start) / seconds
            start = until
        return start + left * kernel.seconds

    def _end(self, work: Work) -> float:
        assert work.kernel is not None, f"{work.name} is no kernel"
        return self.end(work.start, work.kernel)

    def place(self, work: Work, launched: float, now: float) -> float:
        """A kernel joins its stream, at ``work.start``; no later collective begins before ``now``. When it ends."""
        (stream,) = work.queues
        works = self._kernels.get(stream)
        if works is None:
            works = self._kernels[stream] = deque()
        work.earliest = work.start
        if works and works[-1].end == stream.time:  # it waits for the kernel before it, or for these:
            work.earliest = max([launched, *(needed.end for needed in work.needs)])
        work.end = self._end(work)
        works.append(work)
        while works and works[0].end <= now:
            works.popleft()
        return work.end

    def take(self, start: float, end: float, share: Share) -> None:
        """A collective runs from ``start`` to ``end``: what is beside it already gets another place."""
        self._taken.append((start, end, share))
        self._last = max(self._last, end)
        for stream, works in self._kernels.items():
            self._place_again(stream, works, start)

    def _place_again(self, stream: Timeline, works: deque[Work], since: float) -> None:
        later = []
        for work in reversed(works):
            if work.end <= since:
                break
            later.append(work)
        if not later:
            return
        waits = stream.time > works[-1].end  # for something else than its last kernel
        free = later[-1].start
        for work in reversed(later):
            work.start = max(work.earliest, free)
            work.end = free = self._end(work)
        stream.time = max(stream.time, free) if waits else free
