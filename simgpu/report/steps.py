"""What an optimizer's steps of a whole program took, as ``python -m simgpu run`` reports it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from simgpu.memory.allocator import readable
from simgpu.ranks.cells import CellProfile
from simgpu.time.phases import COMMUNICATION
from utils.draw.frame import TIMES, unit_for
from utils.draw.timeline import busy_seconds


class Enough(BaseException):
    """The program has made as many steps as were asked for. (No Exception, which programs catch.)"""


class Steps(CellProfile):
    """A profile of a program, with the moments at which steps of its first optimizer were done on the GPU.

    Args:
        most: ``Enough`` is raised after so many steps. 0: never.
    """

    def __init__(self, most: int = 0) -> None:
        super().__init__()
        self.most = most
        self.ends: list[float] = []
        self._optimizer: Optimizer | None = None

    def __enter__(self) -> Steps:
        super().__enter__()
        self._hook = register_optimizer_step_post_hook(self._after_step)
        return self

    def __exit__(self, *exc: object) -> None:
        self._hook.remove()
        super().__exit__(*exc)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._optimizer = self._optimizer or optimizer
        if optimizer is self._optimizer:
            self.ends.append(self.cluster.now() - self._began)
            if len(self.ends) == self.most:
                raise Enough

    def figures(self) -> dict[str, Any]:
        """Of this rank, in seconds and bytes; of its step of median time, or of the whole program if there is none."""
        (gpu,) = self.cluster.own
        seconds = [end - begin for begin, end in zip(self.ends, self.ends[1:], strict=False)]
        median = seconds.index(statistics.median_low(seconds)) if seconds else 0
        begin, end = (self.ends[median], self.ends[median + 1]) if seconds else (0.0, self.elapsed)
        work = [one for one in self._work if gpu.index in one.gpus and begin <= one.start - self._began < end]
        flops = [each for each in work if each.flops]
        on_gpu = sorted((each for each in work if "host" not in each.place), key=lambda each: (each.start, each.end))
        computing = busy_seconds(each for each in on_gpu if each.phase != COMMUNICATION)
        return {
            "steps": len(self.ends),
            "first": self.ends[0] if self.ends else None,
            "seconds": end - begin,
            "whole": self.elapsed,
            "flops": sum(each.flops for each in flops),
            "hfu": sum(each.flops / gpu.model.peak_flops(each.dtype) for each in flops) / (end - begin or 1),
            "types": sorted({each.dtype for each in flops}),
            "computing": computing,
            "sending": busy_seconds(each for each in on_gpu if each.phase == COMMUNICATION),
            "exposed": busy_seconds(on_gpu) - computing,
            "memory": self.memory_at_peak(gpu.index),
            "reserved": self.peak_reserved(gpu.index),
            "capacity": gpu.model.memory_bytes,
        }


def report(figures: dict[str, Any], peaks: list[int]) -> Iterator[str]:
    """The sentences for a reader.

    Args:
        peaks: bytes that each rank held at most; only this one's, if it ran alone.
    """
    of, seconds = "a step", figures["seconds"]
    if figures["steps"] == 0:
        of = "the program"
        yield f"no optimizer made a step; the whole program takes {_time(seconds)}"
    elif figures["steps"] == 1:
        of = "the program"
        yield f"one optimizer step; the whole program takes {_time(seconds)}, with all that comes before the step"
    else:
        yield (
            f"{figures['steps']} optimizer steps: the first is done after {_time(figures['first'])}, with all that "
            f"comes before it; the others take {_time(seconds)} each (median)"
        )
    if figures["flops"]:
        yield (
            f"{figures['flops']:.3g} FLOPs counted in {of} on this GPU: {figures['hfu']:.1%} of its dense peak "
            f"({', '.join(figures['types'])}). That is HFU; MFU is the same if nothing is recomputed"
        )
    if seconds:
        sending = (
            f", and communicates for {_time(figures['sending'])}, {_time(figures['exposed'])} of it exposed (nothing "
        )
        sending = f"{sending}is computed meanwhile)" if figures["sending"] else ""
        yield f"in {of} the GPU computes for {figures['computing'] / seconds:.0%} of the time{sending}"
    held = figures["memory"]
    parts = ", ".join(f"{kind} {readable(n)}" for kind, n in held.items() if n)
    yield (
        f"peak memory {readable(sum(held.values()))} of {readable(figures['capacity'])} ({parts or 'nothing'}); "
        f"PyTorch's allocator reserves {readable(figures['reserved'])}"
    )
    if len(peaks) > 1:
        yield f"peak memory of the {len(peaks)} ranks: {readable(min(peaks))} to {readable(max(peaks))}"


def _time(seconds: float) -> str:
    unit, size = unit_for(seconds, TIMES[:3])
    return f"{seconds / size:.4g} {unit}"
