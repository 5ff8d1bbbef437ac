"""Check of ``choose_workers``: the smallest number within 5 % of the fastest, on machines where that is clear."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from checks.engine import Reference, refuse
from checks.engine.plain import from_array, kind_of, number
from checks.labs.feeding_the_ranks.simulated_loader import MACHINES, Machine

RUN = "measure(workers, 24 * rounds)[4 * rounds :]"
MOST = "    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))\n"
MEAN = "seconds.append(sum(measured) / len(measured))"
CHOSEN = "    return min(workers for workers in range(most + 1) if seconds[workers] <= 1.05 * min(seconds))"
OFFICIAL = Reference("feeding_the_ranks", "choose_workers", {
    "nothing is measured, and all that fit are taken: no rule of thumb fits all machines":
        {MOST: MOST + "    return most\n"},
    "nothing is measured: no rule of thumb fits all machines": {MOST: MOST + "    return min(4, most)\n"},
    "the cores are shared by all ranks of the node, and each rank has workers of its own": {"cores // ranks": "cores"},
    "this is the fastest one measured, but fewer workers are within 5 % of it: the rest is noise":
        {CHOSEN: "    return seconds.index(min(seconds))"},
    "a middle value such as the median is fooled: batches come in bursts, one from each worker and then a long wait. "
    "What counts is the mean over whole rounds":
        {MEAN: "seconds.append(sorted(measured)[len(measured) // 2])"},
    "the shortest time tells nothing: batches come in bursts, and what counts is the mean over whole rounds":
        {MEAN: "seconds.append(min(measured))"},
    "the longest time is that of one long wait: what counts is the mean over whole rounds":
        {MEAN: "seconds.append(max(measured))"},
    "the first batch tells nothing: it waits for the workers to start": {RUN: "measure(workers, 1)"},
    "a few batches tell nothing: those after the first lay ready": {RUN: "measure(workers, 2)[1:]"},
    "the start of the workers is counted, and it happens once in an epoch: leave the first batches out":
        {RUN: "measure(workers, 24 * rounds)"},
    "after the first batch, others lie ready, up to two from each worker: leave them out too":
        {RUN: "measure(workers, 25)[1:]"},
    "0 workers are never tried": {"seconds = []": "seconds = [9.0]", "range(most + 1):": "range(1, most + 1):"},
    "not every number is tried, as powers of two are not all":
        {RUN: RUN + " if workers & (workers - 1) == 0 else [9.0]"},
    "the search stops when one more worker does not help: more may help again":
        {MEAN: MEAN + "\n        if workers and seconds[-1] > 0.95 * seconds[-2]:\n            return workers - 1"},
    "one worker more, to be safe, takes memory: fewer are within 5 % of the fastest":
        {CHOSEN: CHOSEN.replace("return ", "return min(most, 1 + ") + ")"},
    "fewer workers are within 5 % of the fastest: going down from it stops at the first that is not":
        {CHOSEN: "    best = seconds.index(min(seconds))\n"
                 "    while best and seconds[best - 1] <= 1.05 * min(seconds):\n        best -= 1\n    return best"},
    "a batch takes longer than 5 % more than with the fastest: more workers are needed": {"1.05": "1.08"},
    "fewer workers are within 5 % of the fastest": {"1.05": "1.02"},
})  # fmt: skip
MOST_BATCHES = 2_000
STEADY = Machine(step_s=0.008, jitter=0.01)


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """Machines on which the answer is clear, as they are; then with times and nodes of other size."""
    machines = list(MACHINES.items())
    for ratio in (1.0275, 1.0725):  # a batch takes that much longer than with more workers: 5 % is between them
        steady = replace(STEADY, load_s=2 * ratio * (STEADY.step_s + STEADY.ship_s))
        machines.append(("steady times, 2 or 3 workers", steady))
    alone = 1.0275 * (STEADY.step_s + STEADY.ship_s) - STEADY.step_s
    machines.append(("a process as fast as many workers", replace(STEADY, load_s=0.0248, alone_s=alone)))
    name, machine = machines[number % len(machines)]
    return {
        "the machine with": name,
        "machine": _like(machine, rng) if number >= len(MACHINES) else _with_rest(machine),
    }


def _like(machine: Machine, rng: random.Random) -> Machine:
    """Another one with the same answer."""
    pace, nodes = rng.uniform(0.3, 3), rng.choice((1, 2, 3))
    times = {name: getattr(machine, name) * pace for name in ("load_s", "step_s", "disk_s", "ship_s", "start_s")}
    alone = None if machine.alone_s is None else machine.alone_s * pace
    size = {"cores": machine.cores * nodes, "ranks": machine.ranks * nodes, "free_bytes": machine.free_bytes * nodes}
    return _with_rest(replace(machine, **times, **size, alone_s=alone, seed=rng.getrandbits(20), log=[]))


def _with_rest(machine: Machine) -> Machine:
    """With cores and memory left over, not quite enough for one worker more on each rank."""
    share = machine.ranks * machine.worker_bytes
    room = machine.free_bytes // share * share + 3 * share // 4
    return replace(machine, cores=machine.cores + machine.ranks - 1, free_bytes=room, log=[])


def play(case: dict[str, Any], choose_workers: Callable[..., Any]) -> dict[str, Any]:
    machine: Machine = case["machine"]
    size = machine.cores, machine.ranks, machine.worker_bytes, machine.free_bytes
    result = from_array(choose_workers(machine.measure, *size))
    batches = sum(len(seconds) for _, seconds in machine.log)
    words = "measuring takes longer than it saves"
    refuse(batches > MOST_BATCHES, words, measured=f"{batches:,} batches", expected=f"at most {MOST_BATCHES:,}")
    workers = number(result, whole=True)
    words = "choose_workers returns a whole number of workers"
    refuse(workers is None or isinstance(result, float) or workers < 0, words, measured=kind_of(result))
    machine.refuse(workers)
    return {"the workers of a rank": workers}
