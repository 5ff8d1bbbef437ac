"""A simulated data loader: how long batches take with each number of workers, without any clock.

A ``Machine`` works out when each batch is ready: workers take the batches in turn and hold up to two ahead, as those of
``torch.utils.data.DataLoader`` do; a disk serves one after the other; the training process takes batches in order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from checks.engine import refuse

AHEAD = 2  # batches that a worker prepares ahead: DataLoader's prefetch_factor
SETTLED, LONG = 200, 3000  # batches to leave out, and to average over, for the true rate


@dataclass
class Machine:
    """A node whose ranks each have a data loader. Seconds are simulated.

    Args:
        cores: of the node.
        ranks: processes that train on it, each with workers of its own.
        load_s: seconds of one core for a batch.
        step_s: seconds of a training step.
        disk_s: seconds of the disk for a batch; it serves one batch after the other.
        ship_s: seconds of the training process to take a batch over from a worker.
        start_s: seconds until a worker can begin.
        crowding: by how much each further worker slows all of them down, squared.
        alone_s: seconds to load a batch without workers, where the process may use several cores; None: ``load_s``.
        worker_bytes: memory of a worker.
        free_bytes: memory that all workers of the node may take.
        jitter: by how much loading and steps vary, 0.1 is ±10 %.
        seed: of that.
    """

    cores: int = 8
    ranks: int = 1
    load_s: float = 0.036
    step_s: float = 0.009
    disk_s: float = 0.0
    ship_s: float = 0.0002
    start_s: float = 0.5
    crowding: float = 0.0
    alone_s: float | None = None
    worker_bytes: int = 10**9
    free_bytes: int = 64 * 10**9
    jitter: float = 0.1
    seed: int = 0
    log: list[tuple[int, list[float]]] = field(default_factory=list, repr=False)

    @property
    def most(self) -> int:
        """The most workers a rank may have: cores and memory are shared by all ranks of the node."""
        return min(self.cores // self.ranks, self.free_bytes // (self.ranks * self.worker_bytes))

    def measure(self, workers: int, batches: int) -> list[float]:
        """Start a loader with so many workers on every rank, and train on some batches.

        Args:
            workers: of each rank, 0 for none.
            batches: how many.

        Returns:
            The seconds (simulated) from batch to batch. The first one counts from the start of the loader.

        Raises:
            Wrong: if the workers do not fit on the node.
        """
        for what, value, least in (("workers", workers, 0), ("batches", batches, 1)):
            if type(value) is not int or value < least:
                raise TypeError(f"measure takes whole numbers, and {value!r} is no number of {what}.")
        self.refuse(workers)
        seconds = self.simulate(workers, batches, random.Random(f"{self.seed}, {workers}, {len(self.log)}"))
        self.log.append((workers, seconds))
        return list(seconds)

    def refuse(self, workers: int) -> None:
        """Raise Wrong if so many workers a rank do not fit."""
        needs, memory = workers * self.ranks, f"{self.ranks} × {workers} × {self.worker_bytes / 1e9:g} GB"
        words = f"{workers} workers a rank do not fit into memory: the kernel ends a process"
        most = f"at most {self.free_bytes / 1e9:g} GB"
        refuse(needs * self.worker_bytes > self.free_bytes, words, measured=memory, expected=most)
        words = "the cores are shared by all ranks of the node, and each rank has workers of its own"
        told = f"{self.ranks} ranks × {workers} workers"
        refuse(needs > self.cores, words, measured=told, expected=f"at most {self.cores} cores")

    def true_seconds(self, workers: int) -> float:
        """Seconds from batch to batch in the long run."""
        seconds = self.simulate(workers, SETTLED + LONG, random.Random(f"{self.seed}, {workers}, long"))
        return sum(seconds[SETTLED:]) / LONG

    def simulate(self, workers: int, batches: int, chance: random.Random) -> list[float]:
        """Seconds from batch to batch: who waits for whom."""

        def vary(seconds: float) -> float:
            return seconds * chance.uniform(1 - self.jitter, 1 + self.jitter)

        if workers == 0:
            load = self.load_s if self.alone_s is None else self.alone_s
            return [vary(load) + vary(self.disk_s) + vary(self.step_s) for _ in range(batches)]
        load = self.load_s * (1 + self.crowding * (workers - 1) ** 2)
        worker_free = [self.start_s] * workers
        disk_free, now = 0.0, 0.0
        taken: list[float] = []  # when the training process took each batch
        ready: list[float] = []
        seconds = []
        for batch in range(batches):
            # Workers are asked for a new batch whenever one is taken, and have AHEAD each to do.
            for ahead in range(len(ready), min(batches, batch + AHEAD * workers)):
                asked = taken[ahead - AHEAD * workers] if ahead >= AHEAD * workers else 0.0
                begin = max(worker_free[ahead % workers], asked)
                if self.disk_s:
                    disk_free = max(disk_free, begin) + vary(self.disk_s)
                    begin = disk_free
                worker_free[ahead % workers] = begin + vary(load)
                ready.append(worker_free[ahead % workers])
            before, now = now, max(now, ready[batch])
            taken.append(now)
            now += self.ship_s + vary(self.step_s)
            seconds.append(now - before)
        return seconds


MACHINES = {
    "images on a local disk": Machine(load_s=0.054, step_s=0.012, seed=1),
    "a disk in the network": Machine(load_s=0.050, disk_s=0.020, step_s=0.004, seed=2),
    "workers that crowd each other": Machine(load_s=0.040, step_s=0.004, crowding=0.12, seed=3),
    "little memory": Machine(
        cores=16, ranks=2, load_s=0.060, step_s=0.008, worker_bytes=2 * 10**9, free_bytes=20 * 10**9, seed=4
    ),
    "samples that are in memory": Machine(load_s=0.0002, step_s=0.002, ship_s=0.0015, seed=5),
    "a process that loads with many threads": Machine(load_s=0.048, alone_s=0.020, step_s=0.002, seed=6),
    "four ranks on a node": Machine(ranks=4, load_s=0.050, step_s=0.006, seed=7),
}
