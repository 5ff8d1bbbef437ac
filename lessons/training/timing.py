"""Times that other programs on the machine disturb little: the best of several rounds, with cases that take turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

Case = TypeVar("Case")


def best_of(measure: Callable[[Case], float], cases: Sequence[Case], rounds: int) -> list[float]:
    """The shortest time of each case. In each round all cases take a turn, so that a busy moment meets them alike.

    Args:
        measure: from a case to seconds.
        cases: whatever ``measure`` takes.
        rounds: how often each case is measured.
    """
    found = [[measure(case) for case in cases] for _ in range(rounds)]
    return [min(times) for times in zip(*found, strict=True)]


def seconds_in_threads(work: Callable[[], object], threads: int) -> float:
    """Seconds until so many threads, which start together, have each done the work."""
    gate = threading.Barrier(threads + 1)

    def job() -> None:
        gate.wait()
        work()

    crew = [threading.Thread(target=job) for _ in range(threads)]
    for thread in crew:
        thread.start()
    start = time.perf_counter()
    gate.wait()
    for thread in crew:
        thread.join()
    return time.perf_counter() - start


def seconds_on_ranks(work: Callable[[], object], ranks: int) -> float:
    """Seconds from the first start to the last end when the first ranks each do the work. All ranks call it.

    Args:
        work: what is measured.
        ranks: how many of the ranks work; the others only wait for them.
    """
    import torch
    import torch.distributed as dist

    dist.barrier()
    start = time.perf_counter()
    if dist.get_rank() < ranks:
        work()
    both = torch.tensor([-start, time.perf_counter()], dtype=torch.float64)
    dist.all_reduce(both, op=dist.ReduceOp.MAX)  # all ranks of a machine read the same clock
    return both.sum().item()
