"""Check of ``RankStream``: who gives which samples, who reads them and when.

A worker of a loader has a copy of the stream and ``get_worker_info()``: here, a stream of its own. One loader is real.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils import worker as loaders

from checks.engine import Reference, leaves, refuse, watched

MINE, PART = "range(self.rank, length, self.world_size)", "mine[worker.id :: worker.num_workers]"
WORKER = "        if worker is not None:\n            mine = mine[worker.id :: worker.num_workers]\n"
DROP = "        if self.drop_last:\n            length -= length % self.world_size\n"
ROUNDED = "[self.rank * -(-length // self.world_size) :][: -(-length // self.world_size)]"
OFFICIAL = Reference("feeding_the_ranks", "RankStream", {
    "every rank gives the same samples: rank and world_size say which are its own": {MINE: "range(length)"},
    "the workers of a rank give the same samples: each has a copy of the stream, and has to ask get_worker_info() "
    "which it is":
        {WORKER: ""},
    "all workers of all ranks are counted, so the tail goes to the workers of a few ranks: divide by rank first, and a "
    "rank's share by worker":
        {MINE: "range(self.rank * (worker.num_workers if worker else 1) + (worker.id if worker else 0), length, "
               "self.world_size * (worker.num_workers if worker else 1))",
         "        worker = get_worker_info()\n": "", DROP: DROP + "        worker = get_worker_info()\n", WORKER: ""},
    "drop_last is True, and the ranks do not give the same number of samples": {DROP: ""},
    "drop_last is False, so the tail has to come too: some ranks give one sample more":
        {"if self.drop_last:": "if True:"},
    "the tail of the workers is dropped: only what does not fill a round of the ranks is left out":
        {WORKER: WORKER + f"            mine = mine[: len({MINE}) // worker.num_workers]\n"},
    "blocks that are rounded up leave less for the last rank: the ranks' shares differ by one sample at most":
        {MINE: "range(length)" + ROUNDED},
    "a worker's block is rounded up, and the last worker has less: their shares differ by one sample at most":
        {PART: "mine[worker.id * -(-len(mine) // worker.num_workers) :][: -(-len(mine) // worker.num_workers)]"},
    "without workers a part is missing: get_worker_info() is None in the training process, whose share is all its own":
        {WORKER: "        me, workers = (worker.id, worker.num_workers) if worker else (0, 2)\n"
                 "        mine = mine[me::workers]\n"},
    "padding: some samples come twice":
        {DROP: "        total = length if self.drop_last else length + self.world_size - 1\n        total -= total % "
               "self.world_size\n",
         MINE: "[i % length for i in range(self.rank, total, self.world_size)]"},
})  # fmt: skip
MOST = 1_000


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """The text's example first; then tails, no workers, fewer samples than workers, a sample that is None."""
    some = (4, 2, 20, False), (4, 2, 29, True), (3, 0, 8, False), (3, 2, 4, False), (2, 3, 11, False), (2, 2, 25, True)
    ranks, workers = rng.randint(1, 5), rng.randint(0, 3)
    drawn = some[number] if number < len(some) else (ranks, workers, rng.randint(0, 60), number % 2 == 0)
    case = dict(zip(("ranks", "workers", "samples", "drop_last"), drawn, strict=True))
    return case | ({"None": 5} if number == 4 else {}) | ({"real loader": True} if number == 5 else {})


class _Source:
    """What a stream reads from, a sample at a time."""

    def __init__(self, length: int, none: int | None) -> None:
        self.samples = [None if index == none else 1_000 + index for index in range(length)]
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int | None:
        refuse(isinstance(index, slice), "samples are read one at a time: source[i], with a whole number i")
        if not 0 <= index < len(self.samples):
            raise IndexError(f"there is no sample {index}: they go from 0 to {len(self.samples) - 1}")
        self.reads.append(index)
        return self.samples[index]


def play(case: dict[str, Any], RankStream: Callable[..., Any]) -> dict[str, Any]:
    ranks, workers, samples = case["ranks"], case["workers"], case["samples"]
    shares: list[list[list[int]]] = []  # by rank, by worker
    with leaves(), watched() as wire:
        for rank in range(ranks):
            shares.append([])
            for worker in range(max(workers, 1)):
                source = _Source(samples, case.get("None"))
                with _in_worker(worker, workers):
                    stream = RankStream(source, ranks, rank, *[True] * case["drop_last"])
                    shares[-1].append(_given(stream, source))
    refuse(wire.calls, "the ranks need no communication for this: rank and world_size are given")
    if case.get("real loader"):
        loader = DataLoader(stream, batch_size=None, num_workers=workers, multiprocessing_context="fork")
        words = "in a real DataLoader, a rank gives other samples in two epochs than its workers one by one"
        refuse(any(sorted(loader) != sorted(1_000 + one for part in shares[-1] for one in part) for _ in "12"), words)
    sizes = [[len(one) for one in share] for share in shares]
    counts = Counter(itertools.chain(*itertools.chain(*shares)))
    words = "too many samples are dropped: only what does not fill a round of the ranks is left out"
    refuse(case["drop_last"] and counts.total() < samples - samples % ranks, words)
    return {
        "how often the rarest sample comes": min((counts[index] for index in range(samples)), default=0),
        "how often the most frequent sample comes": max(counts.values(), default=0),
        "how many samples the ranks give, the smallest share first": sorted(map(sum, sizes)),
        "whether the shares of a rank's workers differ by one at most": all(max(one) - min(one) < 2 for one in sizes),
    }


def _given(stream: Any, source: _Source) -> list[int]:
    """The samples of one worker, in order."""
    words = "the stream is no IterableDataset, so a DataLoader asks it for sample numbers"
    refuse(not isinstance(stream, IterableDataset), words)
    words = "samples are read when the stream is made: each worker reads its own, when somebody asks for them"
    refuse(source.reads, words)
    found, read = [], []  # the numbers of the samples, and how many were read when each of them came
    for sample in itertools.islice(stream, MOST):
        words = "something comes that is no sample of the source: give source[i] as it is"
        refuse(sample not in source.samples, words, measured=f"{sample!r}")
        found.append(source.samples.index(sample))
        read.append(len(source.reads))
    early = any(len({*source.reads[:n]} & {*found}) > place + 1 for place, n in enumerate(read))
    refuse(early, "a sample is read before somebody asks for it: let __iter__ read one, and yield it")
    lost = {*source.reads} - {*found}
    words = "a sample that is None is left out: it is one like any other"
    refuse(lost and all(source.samples[index] is None for index in lost), words)
    words = "samples are read that are not given, and reading is what costs: work out the numbers of its own, and read "
    refuse(lost, words + "those")
    words = "a sample is read more than once: reading is what costs"
    refuse(len({*source.reads}) < len(source.reads), words)
    again = [source.samples.index(sample) for sample in itertools.islice(stream, MOST)]
    words = "the second epoch has other samples than the first: each call of __iter__ begins anew, with the same share"
    refuse({*again} != {*found}, words)
    pairs = list(itertools.islice(zip(stream, stream, strict=False), MOST))
    words = "two iterators of one stream disturb each other: what __iter__ counts belongs to it, not to self"
    refuse(pairs != [(source.samples[one],) * 2 for one in found], words)
    return found


@contextlib.contextmanager
def _in_worker(worker: int, workers: int) -> Iterator[None]:
    """In the block, ``get_worker_info`` says that this is a worker, if there are any."""
    loaders._worker_info = loaders.WorkerInfo(worker, workers, 0, None) if workers else None  # type: ignore[arg-type]
    try:
        yield
    finally:
        loaders._worker_info = None
