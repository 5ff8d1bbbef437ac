"""Check of ``choose_workers`` on machines with a simulated data loader: how long batches take, without any clock.

A ``Machine`` works out when each batch is ready: workers take the batches in turn and hold up to two ahead, as those of
``torch.utils.data.DataLoader`` do; a disk serves one after the other; the training process takes batches in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import from_array, kind_of, number

AHEAD = 2  # batches that a worker prepares ahead: DataLoader's prefetch_factor
SETTLED, LONG = 200, 3000  # batches to leave out, and to average over, for the true rate


@dataclass
class Machine:
    """A node whose ranks each have a data loader. Seconds are simulated."""

    cores: int = 8  # of the node
    ranks: int = 1  # processes that train on it, each with workers of its own
    load_s: float = 0.036  # of one core for a batch
    step_s: float = 0.009  # of training
    disk_s: float = 0.0  # of the disk for a batch; it serves one batch after the other
    ship_s: float = 0.0002  # of the training process, to take a batch over from a worker
    start_s: float = 0.5  # until a worker can begin
    crowding: float = 0.0  # by how much each further worker slows all of them down, squared
    alone_s: float | None = None  # to load a batch without workers, maybe on several cores; None: load_s
    worker_bytes: int = 10**9
    free_bytes: int = 64 * 10**9  # that all workers of the node may take
    jitter: float = 0.1  # by how much loading and steps vary: 0.1 is ±10 %
    seed: int = 0  # of that
    log: list[int] = field(default_factory=list, init=False, repr=False)  # batches of each measurement

    @property
    def most(self) -> int:
        """The most workers a rank may have: cores and memory are shared by all ranks of the node."""
        return min(self.cores // self.ranks, self.free_bytes // (self.ranks * self.worker_bytes))

    def measure(self, workers: int, batches: int) -> list[float]:
        """Seconds from batch to batch with so many workers on each rank; the first one from the start of the loader."""
        self.refuse(workers)
        chance = random.Random(f"{self.seed}, {workers}, {len(self.log)}")
        self.log.append(batches)
        return self._simulate(workers, batches, chance)

    def refuse(self, workers: int) -> None:
        """Raise Wrong if so many workers a rank do not fit."""
        node, most = f"{self.ranks} ranks × {workers} workers", f"at most {self.free_bytes / 1e9:g} GB"
        fault = f"{workers} workers a rank do not fit into memory: the kernel ends a process"
        full = workers * self.ranks * self.worker_bytes > self.free_bytes
        refuse(full, fault, measured=f"{node} × {self.worker_bytes / 1e9:g} GB", expected=most)
        fault = "the cores are shared by all ranks of the node, and each rank has workers of its own"
        refuse(workers * self.ranks > self.cores, fault, measured=node, expected=f"at most {self.cores} cores")

    def true_seconds(self, workers: int) -> float:
        """Seconds from batch to batch in the long run."""
        seconds = self._simulate(workers, SETTLED + LONG, random.Random(f"{self.seed}, {workers}, long"))
        return sum(seconds[SETTLED:]) / LONG

    def _simulate(self, workers: int, batches: int, chance: random.Random) -> list[float]:
        """Seconds from batch to batch: who waits for whom."""

        def vary(seconds: float) -> float:
            return seconds * chance.uniform(1 - self.jitter, 1 + self.jitter)

        if workers == 0:
            load = self.load_s if self.alone_s is None else self.alone_s
            return [vary(load) + vary(self.disk_s) + vary(self.step_s) for _ in range(batches)]
        load = self.load_s * (1 + self.crowding * (workers - 1) ** 2)
        free, disk_free, now = [self.start_s] * workers, 0.0, 0.0  # when each worker can begin
        taken: list[float] = []  # when the training process took each batch
        ready: list[float] = []
        seconds = []
        for batch in range(batches):
            # Workers are asked for a new batch whenever one is taken, and have AHEAD each to do.
            for ahead in range(len(ready), min(batches, batch + AHEAD * workers)):
                asked = taken[ahead - AHEAD * workers] if ahead >= AHEAD * workers else 0.0
                begin = max(free[ahead % workers], asked)
                if self.disk_s:
                    begin = disk_free = max(disk_free, begin) + vary(self.disk_s)
                free[ahead % workers] = begin + vary(load)
                ready.append(free[ahead % workers])
            before, now = now, max(now, ready[batch])
            taken.append(now)
            now += self.ship_s + vary(self.step_s)
            seconds.append(now - before)
        return seconds


MACHINES = {
    "images on a local disk": Machine(load_s=0.054, step_s=0.012, seed=1),
    "a disk in the network": Machine(load_s=0.050, disk_s=0.020, step_s=0.004, seed=2),
    "workers that crowd each other": Machine(load_s=0.040, step_s=0.004, crowding=0.12, seed=3),
    "little memory": Machine(16, 2, load_s=0.060, step_s=0.008, worker_bytes=2 * 10**9, free_bytes=20 * 10**9, seed=4),
    "samples that are in memory": Machine(load_s=0.0002, step_s=0.002, ship_s=0.0015, seed=5),
    "a process that loads with many threads": Machine(load_s=0.048, alone_s=0.020, step_s=0.002, seed=6),
    "four ranks on a node": Machine(ranks=4, load_s=0.050, step_s=0.006, seed=7),
}
RUN = "measure(workers, 24 * rounds)[4 * rounds :]"
MOST = "    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))\n"
MEAN = "seconds.append(sum(measured) / len(measured))"
CHOSEN = "    return min(workers for workers in range(most + 1) if seconds[workers] <= 1.05 * min(seconds))"
OFFICIAL = Reference("feeding_the_ranks", "choose_workers", {
    "nothing is measured: no rule of thumb fits all machines": {MOST: MOST + "    return min(4, most)\n"},
    "the cores are shared by all ranks of the node, and each rank has workers of its own": {"cores // ranks": "cores"},
    "this is the fastest one measured, but fewer workers are within 5 % of it: the rest is noise":
        {CHOSEN: "    return seconds.index(min(seconds))"},
    "a middle value such as the median is fooled: batches come in bursts, one from each worker and then a long wait. "
    "What counts is the mean over whole rounds":
        {MEAN: "seconds.append(sorted(measured)[len(measured) // 2])"},
    "the first batch tells nothing: it waits for the workers to start": {RUN: "measure(workers, 1)"},
    "the start of the workers is counted, and it happens once in an epoch: leave the first batches out":
        {RUN: "measure(workers, 24 * rounds)"},
    "after the first batch, others lie ready, up to two from each worker: leave them out too":
        {RUN: "measure(workers, 25)[1:]"},
    "0 workers are never tried": {"seconds = []": "seconds = [9.0]", "range(most + 1):": "range(1, most + 1):"},
    "not every number is tried, as powers of two are not all":
        {RUN: RUN + " if workers & (workers - 1) == 0 else [9.0]"},
    "the search stops when one more worker does not help: more may help again":
        {MEAN: MEAN + "\n        if workers and seconds[-1] > 0.95 * seconds[-2]:\n            return workers - 1"},
    "fewer workers are within 5 % of the fastest: going down from it stops at the first that is not":
        {CHOSEN: "    best = seconds.index(min(seconds))\n"
                 "    while best and seconds[best - 1] <= 1.05 * min(seconds):\n        best -= 1\n    return best"},
    "a batch takes longer than 5 % more than with the fastest: more workers are needed": {"1.05": "1.08"},
    "fewer workers are within 5 % of the fastest": {"1.05": "1.02"},
})  # fmt: skip
STEADY = Machine(step_s=0.008, jitter=0.01)


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """Machines on which the answer is clear, later ones of other size. Some cores and some memory are left over."""
    machines, taken = dict(MACHINES), STEADY.step_s + STEADY.ship_s
    for ratio in (1.0275, 1.0725):  # a batch takes that much longer than with more workers: 5 % is between them
        machines[f"steady times, {ratio} times as long with 2 workers"] = replace(STEADY, load_s=2 * ratio * taken)
    alone = 1.0275 * taken - STEADY.step_s
    machines["a process as fast as many workers"] = replace(STEADY, load_s=0.0248, alone_s=alone)
    name, machine = list(machines.items())[number % len(machines)]
    if number >= len(MACHINES):
        pace, nodes = rng.uniform(0.3, 3), rng.choice((1, 2, 3))
        longer = {name: time * pace for name, time in vars(machine).items() if name.endswith("_s") and time is not None}
        larger = {name: getattr(machine, name) * nodes for name in ("cores", "ranks", "free_bytes")}
        machine = replace(machine, **longer, **larger, seed=rng.getrandbits(20))
    share = machine.ranks * machine.worker_bytes
    room = machine.free_bytes // share * share + 3 * share // 4
    machine = replace(machine, cores=machine.cores + machine.ranks - 1, free_bytes=room)
    return {"the machine with": name, "machine": machine}


@exercise(OFFICIAL, draw, title="Choose num_workers", difficulty=2, minutes=20)
def workers(case: dict[str, Any], choose_workers: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``choose_workers(measure, cores, ranks, worker_bytes, free_bytes)`` on simulated machines."""
    machine: Machine = case["machine"]
    size = machine.cores, machine.ranks, machine.worker_bytes, machine.free_bytes
    result = from_array(choose_workers(machine.measure, *size))
    fault, batches = "measuring takes longer than it saves", sum(machine.log)
    refuse(batches > 2_000, fault, measured=f"{batches:,} batches", expected="at most 2,000")
    chosen = number(result, whole=True)
    refuse(chosen is None, "choose_workers returns a whole number of workers", measured=kind_of(result))
    machine.refuse(chosen)
    return {"the workers of a rank": chosen}
