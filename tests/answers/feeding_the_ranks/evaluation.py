"""Exercise 2 of the lab on feeding the ranks: an evaluation without duplicates. What is not here is in the official solution."""

import numpy
import torch
import torch.distributed as dist
from known_answers import right, wrong

INDICES, ALL = "        self.indices = range(rank, len(dataset), world_size)\n", "range(rank, len(dataset), world_size)"
COUNTS, SUM = "    counts = torch.tensor([correct, seen])\n", "    dist.all_reduce(counts)\n"


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


wrong("from one", "a sampler gives plain ints from 0 to 3", {ALL: "range(rank + 1, len(dataset) + 1, world_size)"})
wrong("DistributedSampler", "evaluated more than once", {
    INDICES: "        self.indices = list(DistributedSampler(dataset, world_size, rank, shuffle=False))\n"
})  # fmt: skip
wrong("used up", "__iter__ begins anew", {
    INDICES: INDICES + "        self.iterator = iter(self.indices)\n", "return iter(self.indices)": "return self.iterator"
})  # fmt: skip
wrong("two collectives", "two numbers need one collective", {
    COUNTS + SUM: "    counts = torch.tensor(correct), torch.tensor(seen)\n"
    "    dist.all_reduce(counts[0])\n    dist.all_reduce(counts[1])\n"
})  # fmt: skip
wrong("in float32", "travel as float32", {"[correct, seen])": "[correct, seen], dtype=torch.float32)"})
