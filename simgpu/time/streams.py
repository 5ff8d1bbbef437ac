"""Streams and events of simulated GPUs, as ``torch.cuda`` has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu.cluster import current, exists, is_simulated
from simgpu.time import happens_before
from simgpu.time.work import Lane, Timeline


class _Awaited:
    """What the host can wait for: something on a GPU that is done at a ``time``."""

    __slots__ = ()
    gpu: int
    time: float

    def _order(self) -> happens_before.Order | None:
        """What is done when it is done, while somebody looks for races."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """The host waits until it is done."""
        happens_before.host_waits(self._order())
        current().clock.act(lambda lane: lane.reach(self.time), self.gpu)

    def query(self) -> bool:
        """Is it done, at this moment of simulated time?"""
        clock = current().clock
        clock.settle()
        done = self.time <= clock.lane(self.gpu).time
        if done:
            happens_before.host_waits(self._order())
        return done


class Stream(_Awaited, Timeline):
    """A queue of work on one simulated GPU, like ``torch.cuda.Stream``.

    Work of one stream runs in order; work of different streams can overlap.

    Args:
        device: the GPU, as a number, "simgpu:1" or a torch.device. None: the current one.
        priority: kept, within ``priority_range()``. It changes no time: streams do not take speed from each other here.
    """

    __slots__ = ("_outer", "gpu", "priority")

    def __init__(self, device: int | str | torch.device | None = None, priority: int = 0) -> None:
        self._set_up(current().index(device), priority)
        current().gpus[self.gpu].streams.append(self)

    @classmethod
    def of_gpu(cls, gpu: int) -> Stream:
        """A stream that a GPU of a new cluster starts with."""
        stream = cls.__new__(cls)
        stream._set_up(gpu)
        return stream

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority, as CUDA counts them on today's GPUs."""
        return 0, -5

    def _set_up(self, gpu: int, priority: int = 0) -> None:
        least, greatest = self.priority_range()
        self.priority = min(max(priority, greatest), least)
        super().__init__("side stream")
        self.gpu = gpu
        self._outer: list = []

    def _order(self) -> happens_before.Order | None:
        return happens_before.recorded(self)

    def wait_stream(self, other: Stream) -> None:
        """Later work of this stream begins only when what ``other`` has now is done."""
        happens_before.stream_waits_for_stream(self, other)
        current().clock.act(lambda _: self.reach(other.time), self.gpu)

    def record_event(self, event: Event | None = None) -> Event:
        """An event that happens when what is in the stream now is done."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Later work of this stream begins only after ``event``."""
        happens_before.stream_waits(self, event.order)
        current().clock.act(lambda _: self.reach(event.time), self.gpu)

    @property
    def device(self) -> torch.device:
        """The GPU that it belongs to."""
        return torch.device("simgpu", self.gpu)

    def __enter__(self) -> Stream:
        cluster = current()
        if self not in cluster.gpus[min(self.gpu, len(cluster) - 1)].streams:
            raise RuntimeError(
                "this stream belongs to an earlier simulated cluster, which simgpu.cluster(...) has replaced"
            )
        self._outer.append((cluster.current_index(), cluster.current_stream(self.gpu)))
        cluster.set_current(self.gpu)
        cluster.set_stream(self)
        return self

    def __exit__(self, *exc: object) -> None:
        gpu, stream = self._outer.pop()
        current().set_stream(stream)
        current().set_current(gpu)

    def __repr__(self) -> str:
        return f"<Stream of simulated GPU {self.gpu}>"


class Event(_Awaited):
    """A mark in a stream, like ``torch.cuda.Event``; ``elapsed_time`` is in milliseconds of simulated time."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.time = 0.0
        self.gpu = 0
        self.enable_timing = enable_timing
        self.order: happens_before.Order | None = None
        self._recorded = False

    def _order(self) -> happens_before.Order | None:
        return self.order

    def record(self, stream: Stream | None = None) -> None:
        """It happens when what is in ``stream`` (None: the current one) now is done."""
        stream = stream or current().current_stream()
        self.gpu = stream.gpu
        self._recorded = True
        self.order = happens_before.recorded(stream)

        def note(lane: Lane) -> None:
            self.time = max(stream.time, lane.time)

        current().clock.act(note, self.gpu)

    def wait(self, stream: Stream | None = None) -> None:
        """Make ``stream`` (None: the current one) wait for it."""
        (stream or current().current_stream()).wait_event(self)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of simulated time from this event to ``end``.

        Raises:
            ValueError: one of them was made without ``enable_timing=True``, or has not been recorded.
            RuntimeError: one of them has not happened yet: the host must ``synchronize`` first.
        """
        if not (self.enable_timing and end.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._recorded and end._recorded):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end.time - self.time) * 1e3


def of_any_device(simulated: Callable[..., Any], plain: Any) -> Any:
    """``torch.Stream`` or ``torch.Event``: ``simulated`` makes those of simulated GPUs."""

    class Kind(type):
        def __call__(cls, device: Any = None, **options: Any) -> Any:
            asked = device is None or is_simulated(torch.device(device).type)
            ours = exists() and "stream_id" not in options and asked
            return simulated(device, **options) if ours else plain(device, **options)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, plain | _Awaited)

    return Kind(plain.__name__, (), {"__doc__": plain.__doc__})
