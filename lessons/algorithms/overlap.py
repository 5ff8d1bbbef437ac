"""How much of the communication is hidden behind the backward pass? Measured on a real rank with torch's profiler.

``profile_step`` runs a training step under ``torch.profiler`` and keeps what counts here: when the backward pass was
computing, and when messages were under way. **Overlap** is the share of communication time during which the
same rank was computing. ``spans`` gives them to ``utils.draw.timeline``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.autograd.profiler_util import FunctionEvent

from utils.draw import Span

Interval = tuple[float, float]
BACKWARD = "autograd::engine::evaluate_function"
REDUCE = ("all-reduce on the slow link", "gloo:all_reduce")


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
    def early(self) -> float:
        """Seconds from the launch of the first message to the end of the backward pass. Negative: it came later."""
        if not self.communication:
            raise ValueError("no message was sent in this step")
        return self.backward_ends - self.communication[0][0]

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
    slow = [one for one in events if one.name == REDUCE[0]]
    messages = slow or [one for one in events if one.name in REDUCE[1:]]
    (whole,) = (_interval(one, zero) for one in events if one.name == "the step")
    return StepProfile(
        rank, (whole[0], backward[0][0]), backward, sorted(_interval(one, zero) for one in messages), whole[1]
    )


def _interval(event: FunctionEvent, zero: float) -> Interval:
    return zero + event.time_range.start / 1e6, zero + event.time_range.end / 1e6
