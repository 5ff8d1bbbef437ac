"""Checks of what deals samples out to ranks: a sampler for training, one for an evaluation, and a stream.

A worker of a loader has a copy of the stream and ``get_worker_info()``: here, a stream of its own.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch.utils.data import DistributedSampler, IterableDataset
from torch.utils.data._utils import worker as loaders

from checks.engine import Reference, exercise, judge, leaves, refuse, same, watched
from checks.engine.plain import kind_of
from checks.points import passed

Shares = list[list[int]]  # indices of each rank, rank 0 first
MOST = 1_000  # indices that are asked of a sampler, samples of a stream
REPEATED, GIVES = "order * math.ceil(total / self.length)", "repeated[self.rank : total : self.world_size]"
TRAINING = Reference("feeding_the_ranks", "TrainingSampler", {
    "drop_last is False, so no sample may be lost: pad instead": {"if self.drop_last:": "if True:"},
    "drop_last is True, so what does not fill a round is left out, not padded": {"if self.drop_last:": "if False:"},
    "the padding takes the same sample again and again: no sample more than once more than another":
        {REPEATED: "order + order[:1] * (total - self.length)"},
    "every rank has the whole data set: a rank takes its own share": {GIVES: "order"},
    "all ranks have the same samples: rank r takes every N-th one, from r on": {GIVES: "repeated[: len(self)]"},
})  # fmt: skip
INDICES, ALL = "        self.indices = range(rank, len(dataset), world_size)\n", "range(rank, len(dataset), world_size)"
BLOCK = "        self.indices = range(len(dataset))[rank * share : (rank + 1) * share]\n"
SAMPLER = Reference("feeding_the_ranks", "EvaluationSampler", {
    "every rank evaluates the whole data set: that is right, and takes N times the work": {ALL: "range(len(dataset))"},
    "the tail is never evaluated: without padding, some ranks have one sample more":
        {INDICES: "        share = len(dataset) // world_size\n" + BLOCK},
    "samples are evaluated more than once and weigh more than the others: no padding here":
        {ALL: "[i % len(dataset) for i in range(rank, -(-len(dataset) // world_size) * world_size, world_size)]"},
    "blocks that are rounded up leave little for the last ranks: shares differ by one sample at most":
        {INDICES: "        share = -(-len(dataset) // world_size)\n" + BLOCK},
})  # fmt: skip
ACCURACY = Reference("feeding_the_ranks", "accuracy", {
    "this is the mean of the ranks' accuracies, so few samples weigh as much as many: add up the counts, divide then":
        {"torch.tensor([correct, seen])": "torch.tensor([correct / max(seen, 1), 1.0])"},
    "this is the rank's own accuracy: ask the others": {"(counts[0] / counts[1]).item()": "correct / max(seen, 1)"},
})  # fmt: skip
EVALUATION = Reference("feeding_the_ranks", "EvaluationSampler accuracy", {**SAMPLER.mistakes, **ACCURACY.mistakes})
MINE = "range(self.rank, length, self.world_size)"
WORKER = "        if worker is not None:\n            mine = mine[worker.id :: worker.num_workers]\n"
DROP = "        if self.drop_last:\n            length -= length % self.world_size\n"
ROUNDED = "[self.rank * -(-length // self.world_size) :][: -(-length // self.world_size)]"
STREAM = Reference("feeding_the_ranks", "RankStream", {
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
        {"mine[worker.id :: worker.num_workers]":
         "mine[worker.id * -(-len(mine) // worker.num_workers) :][: -(-len(mine) // worker.num_workers)]"},
})  # fmt: skip
COUNTED = [{"correct_and_seen": counts} for counts in (
    [(8, 10), (1, 10), (3, 4)], [(2, 9), (0, 0), (5, 7)], [(200, 300), (70_000, 70_000), (0, 6)],
    [(3 * 10**9, 6 * 10**9), (1, 3 * 10**9), (2**24 + 1, 2**25)], [(4, 4), (6, 6), (2, 2)],
)]  # fmt: skip
PARTS = {"EvaluationSampler": 1, "accuracy": 1}
EPOCHS = 1_000, 3, 0, 4, 1, 2  # in this order, so that who counts by himself is found out
MANY = 20  # samples: so many are not in the same order twice by chance


class Source:
    """A data set, which notes who reads its samples, one at a time."""

    def __init__(self, length: int, none: int | None = None) -> None:
        self.samples = [None if index == none else 1_000 + index for index in range(length)]
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int | None:  # ``for … in`` and ``list`` come here too
        refuse(isinstance(index, slice), "samples are read one at a time: source[i], with a whole number i")
        self.reads.append(range(len(self))[index])
        return self.samples[index]


def _dealt(samplers: Sequence[Any], source: Source, epoch: int | None = None) -> Shares:
    """What the samplers of all ranks give, each time that they are iterated: plain ints that name samples."""
    for sampler in samplers if epoch is not None else ():
        sampler.set_epoch(epoch)
    shares = [list(itertools.islice(sampler, MOST)) for sampler in samplers]
    refuse(source.reads, "the sampler reads samples of the data set: it needs the length alone, and gives indices")
    for sampler, share in zip(samplers, shares, strict=True):
        strange = [index for index in share if type(index) is not int or not 0 <= index < len(source)]
        fault = f"a sampler gives plain ints from 0 to {len(source) - 1} (.tolist() makes ints of a tensor or an array)"
        refuse(strange, fault, measured=f"{strange[:1]}")
        fault = "the second time, the sampler gives other indices: each __iter__ begins anew, its generator as well"
        refuse(list(itertools.islice(sampler, MOST)) != share, fault)
        pairs = list(itertools.islice(zip(sampler, sampler, strict=False), MOST))
        fault = "two iterators of one sampler disturb each other: where it is belongs to each iterator, not to self"
        refuse(pairs != list(zip(share, share, strict=True)), fault)
    return shares


def _times(shares: Shares, length: int) -> list[int]:
    """How often a sample comes: the rarest one, and the most frequent one."""
    counts = Counter(itertools.chain(*shares))
    return [min((counts[index] for index in range(length)), default=0), max(counts.values(), default=0)]


def draw_training(rng: random.Random, number: int) -> dict[str, Any]:
    """The text's examples first, and fewer samples than ranks; then any data set with and without a rest."""
    ranks = rng.randint(2, 5)
    any_rest = ranks * rng.randint(12, 30) + rng.randint(1, ranks - 1)
    some = (2, 40, False), (4, 10, False), (4, 101, True), (5, 2, False), (ranks, any_rest, False), (1, 30, True)
    ranks, samples, drop_last = some[number] if number < len(some) else (ranks, any_rest, number % 2 == 0)
    return {"ranks": ranks, "samples": samples, "drop_last": drop_last, "seed": rng.randrange(2**31) * (number > 0)}


@exercise(TRAINING, draw_training, title="A sampler for training", difficulty=2, minutes=25)
def training(case: dict[str, Any], TrainingSampler: Callable[..., Any]) -> dict[str, Any]:
    """Judge the class ``TrainingSampler(dataset, world_size, rank, seed, drop_last)`` with ``set_epoch``."""
    ranks, samples, drop_last, seed = case.values()
    share, source = samples // ranks if drop_last else -(-samples // ranks), Source(samples)

    def made(*how: Any) -> list[Any]:
        return [TrainingSampler(source, ranks, rank, *how) for rank in range(ranks)]

    with leaves():
        samplers = made(seed, drop_last)
        refuse(isinstance(samplers[0], DistributedSampler), "write a class of your own, without DistributedSampler")
        lengths, unset = [len(sampler) for sampler in samplers], _dealt(samplers, source)
        epochs = {epoch: _dealt(samplers, source, epoch) for epoch in EPOCHS}
        with mock.patch("builtins.hash", lambda value, usual=hash: usual(value) ^ isinstance(value, str)):
            new = _dealt(made(seed, drop_last), source, epoch=1)  # (a text has another hash in each process)
        other_seed, usual, named = (_dealt(made(*how), source) for how in ((seed + 7, drop_last), (), (0, False)))
    every, total = [unset, *epochs.values()], share * ranks
    sizes, times = max([*map(len, shares)] for shares in every), [_times(shares, samples) for shares in every]
    least, most = min(times)[0], max(most for _, most in times)
    fault = "the ranks have different numbers of samples: a rank with fewer ends its epoch while the others wait for it"
    refuse(any(len({*map(len, shares)}) > 1 for shares in every), fault, measured=sizes, expected=[share] * ranks)
    mixed = sizes == [share] * ranks and least == 0 and most > 1 and len({frozenset(one) for one in unset}) > 1
    fault = "samples are missing, and others come more than once: all ranks make the same order, and then deal it out"
    refuse(mixed, fault)
    if sizes == lengths == [share] * ranks and [least, most] == [total // samples, -(-total // samples)]:
        fault = "a new sampler in another process gives epoch 1 another order: then no run can be resumed"
        refuse(new != epochs[1], fault)
        refuse(unset != epochs[0], "before the first set_epoch, the epoch is 0")
        refuse(usual != named, "without its last arguments the sampler is not that of seed=0, drop_last=False")
        if samples >= MANY:
            _shuffled(samples, drop_last, epochs)
            refuse(other_seed == epochs[0], "the seed does not change the order")
    return {
        "the numbers of indices of the ranks": sizes,
        "len(sampler) on each rank": lengths,
        "how often the rarest sample and the most frequent one come": [least, most],
    }


def _shuffled(samples: int, drop_last: bool, epochs: dict[int, Shares]) -> None:
    """Each epoch is shuffled anew: first all samples, then they are dealt out."""
    every = list(epochs.values())
    refuse(all(share[:-1] == sorted(share[:-1]) for share in epochs[0]), "the samples are not shuffled")
    alike = [pair for pair in itertools.combinations(sorted(epochs), 2) if epochs[pair[0]] == epochs[pair[1]]]
    refuse(alike, "set_epoch does not change the order: two epochs are alike", measured=alike[:1])
    kept = any(len({frozenset(share) for share in shares}) == 1 for shares in zip(*every, strict=True))
    fault = "a rank keeps the samples that it had, and only shuffles them: shuffle first, deal then"
    refuse(kept and len(every[0]) > 1, fault)
    counts = [Counter(itertools.chain(*shares)) for shares in every]
    odd = {frozenset(index for index in range(samples) if count[index] != 1) for count in counts}
    what = "left out: they are never trained on" if drop_last else "repeated: they weigh twice as much"
    fault = f"in every epoch the same samples are {what}. Shuffle first, {'drop' if drop_last else 'pad'} then"
    refuse(len(odd) == 1 and odd != {frozenset()}, fault)


def draw_evaluation(rng: random.Random, number: int) -> dict[str, Any]:
    """The smallest first; then the text's example, and any."""
    ranks = rng.randint(2, 5)
    some = (2, 4), (2, 5), (4, 101), (5, 2), (1, 7), (ranks, rng.randint(ranks, 125))
    return dict(zip(("ranks", "samples"), some[min(number, len(some) - 1)], strict=True))


def play_sampler(case: dict[str, Any], EvaluationSampler: Callable[..., Any]) -> dict[str, Any]:
    ranks, samples = case.values()
    with leaves():
        source = Source(samples)
        samplers = [EvaluationSampler(source, ranks, rank) for rank in range(ranks)]
        shares, lengths = _dealt(samplers, source), [len(sampler) for sampler in samplers]
    times, rising = _times(shares, samples), all(share == sorted(share) for share in shares)
    refuse(times == [1, 1] and not rising, "an evaluation needs no shuffling: let the indices of each rank rise")
    return {
        "the numbers of indices of the ranks, the smallest first": sorted(map(len, shares)),
        "how often the rarest sample and the most frequent one come": times,
        "whether len(sampler) is the number of its indices": lengths == [len(share) for share in shares],
    }


def play_accuracy(case: dict[str, Any], accuracy: Callable[..., Any]) -> dict[str, Any]:
    counts = case["correct_and_seen"][: dist.get_world_size()]
    with leaves(), watched(allowed=("all_reduce", "all_gather")) as wire:
        result = accuracy(*counts[dist.get_rank()])
    refuse(not isinstance(result, float), "accuracy returns no plain float", measured=kind_of(result))
    if same(result, sum(correct for correct, _ in counts) / sum(seen for _, seen in counts)):
        fault = "two numbers need one collective of at most 16 bytes: put them into one tensor"
        told = f"{len(wire.calls)} collectives, {wire.sent()} bytes"
        refuse(len(wire.calls) > 1 or wire.sent() > 16, fault, measured=told)
        narrow = {call["dtype"] for call in wire.calls} & {"float32", "float16", "bfloat16"}
        refuse(narrow, f"counts travel as {' '.join(narrow)}, which has no room for 16,777,217, say: take int64")
    return {"the accuracy": result}


@exercise(EVALUATION, title="An evaluation without duplicates", difficulty=1, minutes=15, parts=PARTS)
def evaluation(EvaluationSampler: Any, accuracy: Any) -> dict[str, Any]:
    """Judge ``EvaluationSampler(dataset, world_size, rank)`` and ``accuracy(correct, seen)``, called on all ranks."""
    judge(SAMPLER, play_sampler, draw_evaluation, EvaluationSampler)
    passed("EvaluationSampler")
    return judge(ACCURACY, play_accuracy, COUNTED, accuracy, ranks=(3, 2, 1))


def draw_stream(rng: random.Random, number: int) -> dict[str, Any]:
    """The text's example first; then tails, no workers, fewer samples than workers, a sample that is None."""
    some = (4, 2, 20, False), (4, 2, 29, True), (3, 0, 8, False), (3, 2, 4, False), (2, 3, 11, False), (2, 2, 25, True)
    ranks, workers = rng.randint(1, 5), rng.randint(0, 3)
    drawn = some[number] if number < len(some) else (ranks, workers, rng.randint(0, 60), number % 2 == 0)
    case = dict(zip(("ranks", "workers", "samples", "drop_last"), drawn, strict=True))
    return case | ({"None": 5} if number == 4 else {})


@exercise(STREAM, draw_stream, title="A stream for ranks and workers", difficulty=2, minutes=20)
def stream(case: dict[str, Any], RankStream: Callable[..., Any]) -> dict[str, Any]:
    """Judge the class ``RankStream(source, world_size, rank, drop_last)``, an IterableDataset."""
    with leaves():
        shares = [
            [_given(RankStream, case, rank, worker) for worker in range(max(case["workers"], 1))]
            for rank in range(case["ranks"])
        ]
    sizes = [[len(part) for part in share] for share in shares]
    least, most = _times([*itertools.chain(*shares)], case["samples"])
    return {
        "how often the rarest sample comes": least,
        "how often the most frequent sample comes": most,
        "how many samples the ranks give, the smallest share first": sorted(map(sum, sizes)),
        "whether the shares of a rank's workers differ by one at most": all(max(one) - min(one) < 2 for one in sizes),
    }


def _given(RankStream: Callable[..., Any], case: dict[str, Any], rank: int, worker: int) -> list[int]:
    """The numbers of the samples that a worker of a rank gives, in order; each is read when somebody asks for it."""
    source, info = Source(case["samples"], case.get("None")), loaders.WorkerInfo(worker, case["workers"], 0, None)
    stream = RankStream(source, case["ranks"], rank, *[True] * case["drop_last"])
    refuse(not isinstance(stream, IterableDataset), "the stream is no IterableDataset: a loader asks it for numbers")
    given, read = [], []  # and how many samples were read when each of them came
    with mock.patch.object(loaders, "_worker_info", info if case["workers"] else None):
        for sample in itertools.islice(stream, MOST):
            refuse(sample not in source.samples, "what comes is no sample of the source", measured=f"{sample!r}")
            given.append(sample)
            read.append(len(source.reads))
        lost = [f"source[{i}], {source.samples[i]}" for i in source.reads if source.samples[i] not in given]
        fault = "samples are read that are not given, and reading is what costs: work out which are its own, read those"
        refuse(lost, fault, measured=lost[:1])
        refuse(len(source.reads) > len({*source.reads}), "a sample is read more than once: reading is what costs")
        early = any(reads > place for place, reads in enumerate(read, start=1))
        refuse(early, "a sample is read before somebody asks for it: let __iter__ read one, and yield it")
        again = Counter(itertools.islice(stream, MOST))
        fault = "the second epoch has other samples than the first: each __iter__ begins anew, with the same share"
        refuse(again != Counter(given), fault)
        pairs = [*itertools.islice(zip(stream, stream, strict=False), MOST)]
        fault = "two iterators of one stream disturb each other: what __iter__ counts belongs to it, not to self"
        refuse([Counter(side) for side in zip(*pairs, strict=True)] != [again, again] * bool(given), fault)
    return [source.samples.index(sample) for sample in given]
