"""What the three loops share: a data set that tells who read it and in which epoch, and what the ranks' steps saw."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from checks.engine import refuse

BATCH = 4
Step = Callable[[int, Any], None]


class Sample(NamedTuple):
    index: int
    epoch: int  # that the data set believed in when it was read
    by_worker: int


class Samples(Dataset):  # type: ignore[type-arg]
    """Each sample is one number, in which a ``Sample`` is hidden."""

    def __init__(self, length: int) -> None:
        self.epoch, self._length, self._process = -1, length, os.getpid()
        self._read_by_workers = torch.zeros(length, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> int:
        index, by_worker = range(self._length)[index], int(os.getpid() != self._process)
        self._read_by_workers[index] += by_worker
        return 1_000_000 * (int(self.epoch) + 2) + 10 * index + by_worker

    def read_by_workers(self) -> int:
        """How often."""
        return int(self._read_by_workers.sum())


def _sample(number: int) -> Sample:
    words = "what comes to step is no sample of the data set: give it the batches of the loader"
    refuse(number < 1_000_000, words)
    return Sample(number % 1_000_000 // 10, number // 1_000_000 - 2, number % 2)


def _numbers(batch: Any) -> list[int]:
    parts = batch.tolist() if hasattr(batch, "tolist") else batch
    return [one for part in parts for one in _numbers(part)] if isinstance(parts, list | tuple) else [int(parts)]


def run(samples: int, loop: Callable[[Samples, Step], Any]) -> list[dict[int, list[Sample]]]:
    """Run a loop on this rank. What came to the steps of each rank in each epoch; batches are of 4 but for the last."""
    if "fork" in multiprocessing.get_all_start_methods():  # a rank's main module cannot be imported by a spawned worker
        multiprocessing.set_start_method("fork", force=True)
    batches: list[tuple[int, list[int]]] = []
    seeds = torch.initial_seed(), random.getstate()
    loop(Samples(samples), lambda epoch, batch: batches.append((epoch, _numbers(batch))))
    words = (
        "your loop seeds a global generator, and the model draws from it too: a sampler has a generator of its own, "
    )
    refuse((torch.initial_seed(), random.getstate()) != seeds, words + "and knows the epoch from set_epoch")
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, batches)
    found: list[dict[int, list[Sample]]] = []
    for mine in everyone:
        found.append({})
        for epoch, numbers in mine:
            before = found[-1].setdefault(epoch, [])
            words = f"these are not batches of {BATCH}, the last one smaller"
            refuse(len(numbers) > BATCH or len(before) % BATCH, words, measured=f"one of {len(numbers)}")
            before += map(_sample, numbers)
    return found


def orders(samples: int, ranks: Sequence[dict[int, list[Sample]]]) -> dict[int, list[list[int]]]:
    """The order of each epoch, for each rank; refused, if it does not hold all samples."""
    found = {epoch: [[one.index for one in rank.get(epoch, ())] for rank in ranks] for epoch in ranks[0]}
    share = -(-samples // len(ranks))
    for epoch, shares in found.items():
        sizes, missing = [len(one) for one in shares], samples - len(set().union(*shares))
        told = {"measured": f"{missing} of {samples} samples are missing in epoch {epoch}"}
        words = "every rank trains on all samples: the loader needs a sampler that deals them out"
        refuse(len(ranks) > 1 and sizes == [samples] * len(ranks), words)
        words = "all ranks see the same samples: the sampler needs to know its rank"
        refuse(missing and all(one == shares[0] for one in shares), words, **told)
        words = "a part of the samples is left out: does drop_last drop them, or is the last batch skipped?"
        refuse(missing and sum(sizes) < samples, words, **told)
        words = "the ranks shuffle differently: seed and epoch must be the same on all of them"
        refuse(missing and sizes == [share] * len(ranks), words, **told)
        refuse(missing, "not all samples are dealt out", **told)
        words = "the ranks' shares are not equal, or more than padding is dealt out twice"
        refuse(not set(sizes) <= {share, samples // len(ranks)}, words, measured=sizes, expected=[share] * len(ranks))
    return found


def named(found: dict[int, Any], whole: dict[int, Any], how: str = "") -> dict[str, Any]:
    """For each epoch of a run, which epoch of the whole one has had its order first."""
    first = {epoch: next((one for one in whole if whole[one] == order), "none") for epoch, order in found.items()}
    return {f"which epoch's order epoch {epoch}{how} has": one for epoch, one in first.items()}


def seen(found: dict[int, list[list[int]]]) -> dict[str, Any]:
    """What there is to compare of the orders of one run."""
    refuse(not found, "nothing comes to step")
    first, *later = found.values()
    moved = [any(set(mine) - set(before) for mine, before in zip(order, first, strict=True)) for order in later]
    return {
        "the epochs that are trained": list(found),
        "whether the samples are shuffled": first != [[*sorted(share[:-1]), share[-1]] for share in first],
        **named(found, found),
        "whether the ranks get other samples than in the first epoch": all(moved) or len(first) == 1,
    }
