"""How fast is the course's ring all-reduce, written in Python over send and recv, beside gloo's own?

For 4, 16 and 64 MB on four ranks: the bandwidth of our algorithms as a part of gloo's, which is gloo's time over ours,
as a ratio of medians of paired runs (all are measured in every round, in turns). Target: the ring reaches at least half
of gloo's bandwidth.

    python benchmarks/all_reduce.py            about a minute on two cores
    python benchmarks/all_reduce.py --quick    three rounds, to see that it works
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

import cloudpickle
import here

import utils

cloudpickle.register_pickle_by_value(sys.modules[__name__])

RANKS = 4
MEGABYTES = (4, 16, 64)
ROUNDS, QUICK_ROUNDS = 15, 3
OURS = ("ring", "halving")
GLOO = "gloo"
TARGET = 0.5


def measure(megabytes: int, rounds: int) -> dict[str, list[float]]:
    """On every rank: seconds of each contestant in each round, as the slowest rank saw them."""
    import time

    import torch
    import torch.distributed as dist

    from lessons.algorithms.all_reduce import all_reduce

    x = torch.empty(megabytes * 1_000_000 // 4)
    times: dict[str, list[float]] = {name: [] for name in (*OURS, GLOO)}
    for number in range(-1, rounds):  # the first round is not counted
        for name in list(times)[:: 1 if number % 2 else -1]:
            x.fill_(1.0)
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(x) if name == GLOO else all_reduce(x, name)
            took = torch.tensor([time.perf_counter() - began])
            assert x[0] == x[-1] == dist.get_world_size()
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if number >= 0:
                times[name].append(took.item())
    return times


def line(megabytes: int, name: str, times: dict[str, list[float]]) -> str:
    """One figure of the report."""
    ours, gloo = times[name], times[GLOO]
    each = [b / a for a, b in zip(ours, gloo, strict=True)]
    ratio = statistics.median(gloo) / statistics.median(ours)
    verdict = f"target ≥ {TARGET:g}: {'met' if ratio >= TARGET else 'MISSED'}" if name == "ring" else ""
    medians = f"{statistics.median(ours) * 1e3:7.1f} : {statistics.median(gloo) * 1e3:7.1f} ms"
    span = f"({min(each):.2f}–{max(each):.2f})"
    return f"{megabytes:>3} MB  {name:8}{medians}   ratio {ratio:.2f} {span}   {verdict}".rstrip()


def main(arguments: Sequence[str] | None = None) -> None:
    rounds, last_words = here.begin(__doc__, ROUNDS, QUICK_ROUNDS, arguments)
    print(f"paired runs:  {rounds} rounds, {RANKS} gloo ranks, float32; medians, ours : gloo's own all_reduce")
    print("ratio:        gloo's time over ours, which is our bandwidth over gloo's (lowest–highest of single rounds)\n")
    for megabytes in MEGABYTES:
        times = utils.launch(measure, megabytes, rounds, ranks=RANKS, backend="gloo", show_output=False)[0]
        for name in OURS:
            print(line(megabytes, name, times), flush=True)
    print(last_words, end="")


if __name__ == "__main__":
    main()
