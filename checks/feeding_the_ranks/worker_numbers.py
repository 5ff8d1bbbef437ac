"""Check of ``choose_workers``: the smallest number within 5 % of the fastest, on machines where that is clear."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from checks.core import Reference, refuse
from checks.feeding_the_ranks.simulated_loader import MACHINES, DoesNotFit, Machine
from checks.plain import from_array, kind_of, number

MEASURED = "        measured = measure(workers, 24 * rounds)[4 * rounds :]\n"
MOST = "    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))\n"
MEAN = "seconds.append(sum(measured) / len(measured))"
CHOSEN = "    return min(workers for workers in range(most + 1) if seconds[workers] <= 1.05 * min(seconds))"
FEW = "a few batches tell nothing: the first one waits for the workers to start, the next ones lay ready"
OFFICIAL = Reference("feeding_the_ranks", "choose_workers", {
    "nothing is measured, and all that fit are taken: no rule of thumb fits all machines": {MOST: MOST + "    return most\n"},
    "nothing is measured: no rule of thumb fits all machines": {MOST: MOST + "    return min(4, most)\n"},
    "this is the fastest one measured, but fewer workers are within 5 % of it: the rest is noise":
        {CHOSEN: "    return seconds.index(min(seconds))"},
    "a middle value such as the median is fooled: batches come in bursts, one from each worker and then a long wait. "
    "What counts is the mean over whole rounds":
        {MEAN: "seconds.append(sorted(measured)[len(measured) // 2])"},
    "the shortest time tells nothing: batches come in bursts, and what counts is the mean over whole rounds":
        {MEAN: "seconds.append(min(measured))"},
    "the longest time is that of one long wait: what counts is the mean over whole rounds":
        {MEAN: "seconds.append(max(measured))"},
    "the first batch tells nothing: it waits for the workers to start": {MEASURED: "        measured = measure(workers, 1)\n"},
    "a few batches tell nothing: those after the first lay ready": {MEASURED: "        measured = measure(workers, 2)[1:]\n"},
    "the start of the workers is counted, and it happens once in an epoch: leave the first batches out":
        {MEASURED: "        measured = measure(workers, 24 * rounds)\n"},
    "after the first batch, others lie ready, up to two from each worker: leave them out too":
        {MEASURED: "        measured = measure(workers, 25)[1:]\n"},
    "0 workers are never tried": {"seconds = []": "seconds = [9.0]", "range(most + 1):": "range(1, most + 1):"},
    "not every number is tried, as powers of two are not all":
        {"        rounds = max": "        if workers & (workers - 1):\n            seconds.append(9.0)\n            continue\n"
                               "        rounds = max"},
    "the search stops when one more worker does not help: more may help again":
        {MEAN: MEAN + "\n        if workers and seconds[-1] > 0.95 * seconds[-2]:\n            return workers - 1"},
    "one worker more, to be safe, takes memory: fewer are within 5 % of the fastest":
        {CHOSEN: "    workers = 0\n    while seconds[workers] > 1.05 * min(seconds):\n        workers += 1\n    return min(most, workers + 1)"},
    "fewer workers are within 5 % of the fastest: going down from it stops at the first that is not":
        {CHOSEN: "    best = seconds.index(min(seconds))\n    while best and seconds[best - 1] <= 1.05 * min(seconds):\n"
                 "        best -= 1\n    return best"},
    "a batch takes longer than 5 % more than with the fastest: more workers are needed": {"1.05": "1.08"},
    "fewer workers are within 5 % of the fastest": {"1.05": "1.02"},
})  # fmt: skip
MOST_BATCHES = 2_000


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """Machines on which the answer is clear, as they are; then with times and nodes of other size."""
    machines = list(MACHINES.items())
    if number < len(machines):
        name, machine = machines[number]
    elif number < len(machines) + 4:  # with so many workers a batch takes that much longer than with more
        workers, ratio = rng.choice((1, 2, 4)), (1.0275, 1.0725)[number % 2]
        name, machine = f"steady times, {workers} or {workers + 1} workers", _nearly(workers, ratio)
    else:
        name, machine = rng.choice(machines)
    return {"the_machine": name, "machine": _like(machine, rng) if number >= len(machines) else _with_rest(machine)}


def _nearly(workers: int, ratio: float) -> Machine:
    step = Machine(load_s=0.0, step_s=0.008, jitter=0.01)
    return replace(step, load_s=ratio * workers * (step.step_s + step.ship_s))


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

    def measure(workers: int, batches: int) -> list[float]:
        try:
            return machine.measure(workers, batches)
        except DoesNotFit as error:
            refuse(True, error.sentence, measured=error.measured, expected=error.expected)

    result = from_array(choose_workers(measure, machine.cores, machine.ranks, machine.worker_bytes, machine.free_bytes))
    batches = sum(len(seconds) for _, seconds in machine.log)
    words = "measuring takes longer than it saves"
    refuse(batches > MOST_BATCHES, words, measured=f"{batches:,} batches", expected=f"at most {MOST_BATCHES:,}")
    whole = number(result, whole=True)
    words = "choose_workers returns a whole number of workers"
    refuse(whole is None or isinstance(result, float) or whole < 0, words, measured=kind_of(result))
    try:
        machine.refuse(whole)
    except DoesNotFit as error:
        refuse(True, error.sentence, measured=error.measured, expected=error.expected)
    return {"the workers of a rank": whole}
