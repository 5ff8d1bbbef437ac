"""How much of the communication is hidden behind the backward pass? Measured on a real rank, over a slow link, too.

``profile_step`` runs a training step under ``torch.profiler`` and keeps what counts here: when the backward pass was
computing, and when messages were under way. **Overlap** is the share of communication time during which the
same rank was computing. ``spans`` gives them to ``utils.draw.timeline``.

The ranks of one machine talk through memory: communication is over before it can be seen. A ``SlowLink`` does the real
all-reduce, then holds its result back until the time has passed that ``hardware.links`` works out for the slow link.
A thread of its own does this, one message after the other, as a network card would; meanwhile the rank computes.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.profiler_util import FunctionEvent
from torch.futures import Future

from lessons.algorithms.ddp import Ranks
from utils.draw import Span
from utils.hardware.links import Link, ring_all_reduce

Interval = tuple[float, float]
BACKWARD = "autograd::engine::evaluate_function"
SLOW_LINK = "all-reduce on the slow link"
"""What the profiler calls the time that a message over a ``SlowLink`` takes."""


@dataclass
class StepProfile:
    """What one rank did in one step; all times in seconds, on a clock that the ranks of a machine share.

    Args:
        rank: whose.
        forward: from the beginning of the step to the first backward operator.
        backward: when a backward operator ran.
        communication: from the beginning to the end of each message.
        end: when the step was over.
    """

    rank: int
    forward: Interval
    backward: list[Interval]
    communication: list[Interval]
    end: float

    @property
    def elapsed(self) -> float:
        """Seconds that the step took."""
        return self.end - self.forward[0]

    @property
    def communicating(self) -> float:
        """Seconds in which a message was under way."""
        return total(self.communication)

    @property
    def hidden(self) -> float:
        """Overlap: the share of communication, from 0 to 1, between the first and the last backward operator."""
        if not self.communication:
            return 0.0
        first, last = self.backward[0][0], self.backward_ends
        inside = [(max(a, first), min(b, last)) for a, b in self.communication if a < last and b > first]
        return total(inside) / self.communicating

    @property
    def backward_ends(self) -> float:
        """When the last backward operator was done."""
        return max(end for _, end in self.backward)

    def spans(self, zero: float | None = None) -> list[Span]:
        """For ``draw.timeline``: a lane for computing and one for the messages ("↔"), beginning at ``zero``."""
        zero = self.forward[0] if zero is None else zero
        lane, link = f"rank {self.rank}", f"rank {self.rank} ↔"
        found = [Span(lane, self.forward[0] - zero, self.forward[1] - zero, "forward", "forward")]
        found += [Span(lane, a - zero, b - zero, "backward", "") for a, b in _joined(self.backward)]
        return found + [
            Span(link, a - zero, b - zero, "communication", str(i)) for i, (a, b) in enumerate(self.communication)
        ]


def total(intervals: Iterable[Interval]) -> float:
    """Seconds that are in at least one of the intervals."""
    return sum(b - a for a, b in _joined(sorted(intervals)))


def _joined(intervals: Sequence[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for a, b in intervals:
        if joined and a <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(b, joined[-1][1]))
        else:
            joined.append((a, b))
    return joined


def profile_step(step: Callable[[], object], rank: int = 0) -> StepProfile:
    """Run one step (forward and backward pass) under torch's profiler.

    Args:
        step: called once. Warm up before: the first steps plan buckets and open connections.
        rank: whose it is.

    Raises:
        ValueError: the step had no backward pass, or it has sent by NCCL.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read at first use; the profiler writes to stderr otherwise
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)  # messages have their own threads
    activities = [torch.profiler.ProfilerActivity.CPU]
    profiler = torch.profiler.profile(activities=activities, experimental_config=everywhere)
    with profiler, torch.profiler.record_function("the step"):
        step()
    zero = profiler.profiler.kineto_results.trace_start_ns() / 1e9
    events = profiler.events()
    backward = sorted(_interval(one, zero) for one in events if one.name.startswith(BACKWARD))
    if not backward:
        raise ValueError("there was no backward pass in this step: call loss.backward() in it")
    if any(one.name.startswith("nccl:") for one in events):
        raise ValueError("NCCL sends on the GPU, and this looks at the CPU alone: let model and inputs stay on the CPU")
    slow = [one for one in events if one.name == SLOW_LINK]
    messages = slow or [one for one in events if one.name == "gloo:all_reduce"]
    (whole,) = (_interval(one, zero) for one in events if one.name == "the step")
    return StepProfile(
        rank, (whole[0], backward[0][0]), backward, sorted(_interval(one, zero) for one in messages), whole[1]
    )


def _interval(event: FunctionEvent, zero: float) -> Interval:
    return zero + event.time_range.start / 1e6, zero + event.time_range.end / 1e6


# ---------------------------------------------------------------------- a slow network
class SlowLink:
    """A link between all ranks, with its own latency and bandwidth. Every rank must make it at the same time.

    Args:
        link: how slow. An all-reduce takes as long as a ring all-reduce over this link.

    Attributes:
        sent: bytes of each message so far, in order.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.sent: list[int] = []
        self._group = dist.new_group()  # what else the ranks say to each other must not get in between
        self._messages: queue.SimpleQueue[tuple[Tensor, Future] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._carry, name="slow link", daemon=True)
        self._thread.start()

    def all_reduce(self, tensor: Tensor) -> Future:
        """Sum a tensor over all ranks, in place.

        Returns:
            At once, a future: its value is the tensor, when the link has carried it.

        Raises:
            RuntimeError: the link is closed.
        """
        if not self._thread.is_alive():
            raise RuntimeError("this slow link is closed: make another one")
        future: Future = Future()
        self.sent.append(tensor.nbytes)
        self._messages.put((tensor, future))
        return future

    def close(self) -> None:
        """End the thread, after the messages that are under way."""
        self._messages.put(None)
        self._thread.join()

    def _carry(self) -> None:
        meet = torch.zeros(1)
        while (message := self._messages.get()) is not None:
            tensor, future = message
            try:
                dist.all_reduce(meet, group=self._group)  # a message begins when its last rank is there
                with torch.profiler.record_function(SLOW_LINK):
                    done = time.perf_counter() + ring_all_reduce(tensor.nbytes, dist.get_world_size(), self.link)
                    dist.all_reduce(tensor, group=self._group)
                    time.sleep(max(0.0, done - time.perf_counter()))
                future.set_result(tensor)
            except Exception as error:  # the rank that waits must hear of it
                future.set_exception(error)


class SlowRanks(Ranks):
    """The real ranks, with a slow link for all-reduces: a communicator for ``BucketedDDP``."""

    def __init__(self, link: SlowLink) -> None:
        super().__init__()
        self.link = link

    def all_reduce(self, tensor: Tensor) -> Future:
        return self.link.all_reduce(tensor)


def slow_hook(link: SlowLink, bucket):  # (torch refuses annotations that are strings, as they all are in this file)
    """A communication hook for torch's DDP: ``model.register_comm_hook(link, slow_hook)``.

    Args:
        link: over which gradients go.
        bucket: a ``dist.GradBucket``.
    """
    return link.all_reduce(bucket.buffer()).then(lambda summed: summed.value().div_(dist.get_world_size()))
