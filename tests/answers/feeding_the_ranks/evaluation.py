"""Exercise 2 of the lab on feeding the ranks: an evaluation without duplicates."""

# ruff: noqa: F401 (modules that changed answers use)
import math
import os
import subprocess

import numpy
import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.utils.data import DistributedSampler


class EvaluationSampler:
    def __init__(self, dataset, world_size, rank):
        self.indices = range(rank, len(dataset), world_size)

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


def accuracy(correct, seen):
    counts = torch.tensor([correct, seen])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


INDICES = "        self.indices = range(rank, len(dataset), world_size)\n"
COUNTS = "    counts = torch.tensor([correct, seen])\n"
SUM = "    dist.all_reduce(counts)\n"
RESULT = "    return (counts[0] / counts[1]).item()"


# --- right, and written differently


@right("neighbouring samples, the first ranks have one more; counts gathered")
def blocks_and_all_gather():
    class EvaluationSampler:
        def __init__(self, dataset, world_size, rank):
            share, rest = divmod(len(dataset), world_size)
            self.start = rank * share + min(rank, rest)
            self.count = share + (rank < rest)

        def __len__(self):
            return self.count

        def __iter__(self):
            yield from range(self.start, self.start + self.count)

    def accuracy(correct, seen):
        mine = torch.tensor([correct, seen], dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        right, count = torch.stack(everyone).sum(0).tolist()
        return right / count

    return EvaluationSampler, accuracy


@right("even parts, as torch cuts them; right and wrong ones in float64")
def even_parts():
    class EvaluationSampler:
        def __init__(self, dataset, world_size, rank):
            self.part = torch.arange(len(dataset)).tensor_split(world_size)[rank]

        def __len__(self):
            return self.part.numel()

        def __iter__(self):
            return iter(self.part.tolist())

    def accuracy(correct, seen):
        mine = torch.tensor([[correct, seen - correct]], dtype=torch.float64)
        dist.all_reduce(mine, op=dist.ReduceOp.SUM)
        right, wrong = mine.flatten().tolist()
        return right / (right + wrong)

    return EvaluationSampler, accuracy


@right("a torch sampler that filters, numpy's quotient, an all_reduce that is waited for")
def filters():
    class EvaluationSampler(torch.utils.data.Sampler):
        def __init__(self, dataset, world_size, rank):
            self.dataset, self.mine = dataset, lambda index: index % world_size == world_size - 1 - rank

        def __len__(self):
            return sum(1 for _ in self)

        def __iter__(self):
            return filter(self.mine, range(len(self.dataset)))

    def accuracy(correct, seen):
        counts = torch.zeros(2, dtype=torch.long)
        counts[0], counts[1] = correct, seen
        work = dist.all_reduce(tensor=counts, async_op=True)
        work.wait()
        return numpy.divide(*counts.numpy().astype(float)).item()

    return EvaluationSampler, accuracy


@right("a list, into one tensor, exact whole numbers")
def into_one_tensor():
    class EvaluationSampler(list):
        def __init__(self, dataset, world_size, rank):
            super().__init__(numpy.array_split(numpy.arange(len(dataset)), world_size)[rank].tolist())

    def accuracy(correct, seen):
        ranks = dist.get_world_size()
        if ranks == 1:
            return correct / seen
        all_counts = torch.empty(2 * ranks, dtype=torch.int64)
        dist.all_gather_into_tensor(all_counts, torch.tensor([seen, correct]))
        every_seen, every_correct = all_counts.view(ranks, 2).unbind(1)
        return int(every_correct.sum()) / int(every_seen.sum())

    return EvaluationSampler, accuracy


# --- wrong: the sampler

wrong(
    "from one",
    "there is no sample",
    {"range(rank, len(dataset), world_size)": "range(rank + 1, len(dataset) + 1, world_size)"},
)
wrong("blocks rounded up", "the shares are not even", {
    INDICES: "        share = -(-len(dataset) // world_size)\n"
    "        self.indices = range(len(dataset))[rank * share : (rank + 1) * share]\n"
})  # fmt: skip
wrong("the rest on the last rank", "the shares are not even", {
    INDICES: "        share = len(dataset) // world_size\n"
    "        end = len(dataset) if rank == world_size - 1 else (rank + 1) * share\n"
    "        self.indices = range(rank * share, end)\n"
})  # fmt: skip
wrong("the tail is dropped", "samples are never evaluated", {
    INDICES: "        share = len(dataset) // world_size\n        self.indices = range(rank * share, (rank + 1) * share)\n"
})  # fmt: skip
wrong("DistributedSampler", "samples are evaluated more than once", {
    INDICES: "        self.indices = list(DistributedSampler(dataset, world_size, rank, shuffle=False))\n"
})  # fmt: skip
wrong(
    "everybody takes all",
    "every rank evaluates the whole data set",
    {"range(rank, len(dataset), world_size)": "range(len(dataset))"},
)
wrong("rank 0 only", "the shares are not even", {
    "range(rank, len(dataset), world_size)": "range(len(dataset) if rank == 0 else 0)"
})  # fmt: skip
wrong("the rank of the process", "more than once", {"range(rank,": "range(dist.get_rank(),"})
wrong("the length is rounded up", "len(sampler) is not the number of indices", {
    INDICES: INDICES + "        self.share = -(-len(dataset) // world_size)\n", "return len(self.indices)": "return self.share"
})  # fmt: skip
wrong("shuffled", "an evaluation needs no shuffling", {
    INDICES: "        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()\n"
    "        self.indices = order[rank::world_size]\n"
})  # fmt: skip
wrong(
    "draws without need",
    "an evaluation needs no shuffling",
    {INDICES: INDICES + "        torch.randperm(len(dataset))\n"},
)
wrong("used up", "__iter__ begins anew", {
    INDICES: INDICES + "        self.iterator = iter(self.indices)\n", "return iter(self.indices)": "return self.iterator"
})  # fmt: skip
wrong(
    "tensors",
    "a sampler gives plain ints",
    {"range(rank, len(dataset), world_size)": "torch.arange(len(dataset))[rank::world_size]"},
)
wrong("shares are remembered", "samples", {
    "class EvaluationSampler:\n": "shares = {}\n\n\nclass EvaluationSampler:\n",
    INDICES: "        self.indices = shares.setdefault((world_size, rank), range(rank, len(dataset), world_size))\n",
})  # fmt: skip
wrong("the data set is marked", "`dataset` has attributes", {INDICES: INDICES + "        dataset.rank = rank\n"})
wrong("the samples are read", "the sampler reads samples", {"len(dataset)": "len(list(dataset))"})


# --- wrong: the accuracy

wrong("errors", "the accuracy of all samples is not right", {RESULT: "    return 1 - (counts[0] / counts[1]).item()"})
wrong("a tensor", "a plain float on every rank", {".item()": ""})
wrong("two collectives", "two numbers need one collective", {
    COUNTS + SUM: "    counts = torch.tensor(correct), torch.tensor(seen)\n"
    "    dist.all_reduce(counts[0])\n    dist.all_reduce(counts[1])\n"
})  # fmt: skip
wrong(
    "the rank's own", "this is the rank's own accuracy", {SUM: "", RESULT: "    return correct / seen if seen else 0.0"}
)
wrong("the mean of means", "a rank with fewer samples then weighs as much", {
    "[correct, seen]": "correct / seen if seen else 0.0, dtype=torch.float64",
    RESULT: "    return (counts / dist.get_world_size()).item()",
})  # fmt: skip
wrong("means of ranks with samples", "a rank with fewer samples then weighs as much", {
    "[correct, seen]": "[correct / seen, 1.0] if seen else [0.0, 0.0], dtype=torch.float64"
})  # fmt: skip
wrong(
    "divides by nothing",
    "accuracy raised ZeroDivisionError",
    {"[correct, seen]": "[correct / seen * seen, seen], dtype=torch.float64"},
)
wrong("reduced to rank 0", "calls dist.reduce, and dist.all_reduce and dist.all_gather is all", {
    SUM: "    dist.reduce(counts, 0)\n", "counts[1])": "counts[1].clamp(min=1))"
})  # fmt: skip
wrong(
    "none elsewhere",
    "a plain float on every rank",
    {RESULT: RESULT.replace("    return", "    if dist.get_rank() == 0:\n        return")},
)
wrong("in bytes", "travel as uint8", {"[correct, seen])": "[correct, seen], dtype=torch.uint8)"})
wrong("in float32", "travel as float32", {"[correct, seen])": "[correct, seen], dtype=torch.float32)"})
wrong("in bfloat16", "bfloat16", {"[correct, seen])": "[correct, seen], dtype=torch.bfloat16)"})
wrong("in int32", "travel as int32", {"[correct, seen])": "[correct, seen], dtype=torch.int32)"})
wrong("never waits", "never waits for 1 of 1 calls", {SUM: "    dist.all_reduce(counts, async_op=True)\n"})
wrong(
    "only ranks that have seen something", "Every rank asks", {SUM: "    if seen:\n        dist.all_reduce(counts)\n"}
)
wrong("a barrier too", "calls dist.barrier", {SUM: SUM + "    dist.barrier()\n"})
wrong("a file as a channel", "writes a file", {SUM: SUM + "    open('counts', 'w').close()\n    os.remove('counts')\n"})
wrong("the last counts are kept", "the accuracy of all samples is not right", {
    "def accuracy(correct, seen):\n": "total = [0, 0]\n\n\ndef accuracy(correct, seen):\n"
    "    total[0] += correct\n    total[1] += seen\n", "[correct, seen]": "total",
})  # fmt: skip


@wrong("objects", "two numbers need one collective")
def objects():
    def accuracy(correct, seen):
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (correct, seen))
        return sum(pair[0] for pair in everyone) / sum(pair[1] for pair in everyone)

    return (accuracy,)


@right("all bytes are gathered")
def all_bytes():
    def accuracy(correct, seen):
        mine = torch.tensor([correct, seen]).view(torch.uint8)
        everyone = torch.empty(dist.get_world_size() * 16, dtype=torch.uint8)
        dist.all_gather_single(everyone, mine)
        correct, seen = everyone.view(torch.int64).view(-1, 2).sum(0).tolist()
        return correct / seen

    return EvaluationSampler, accuracy


wrong(
    "its own iterator, which begins anew",
    "two iterators of one sampler disturb each other",
    {
        "        return iter(self.indices)\n": "        self.at = iter(self.indices)\n        return self\n\n"
        "    def __next__(self):\n        return next(self.at)\n"
    },
)
