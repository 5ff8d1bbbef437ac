"""Exercise 8 of the lab on feeding the ranks: a stream that is dealt out to ranks, and to the workers of each."""

# ruff: noqa: F401 (modules that changed answers use)
import itertools
import random

import torch.distributed as dist
from known_answers import right, wrong
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class RankStream(IterableDataset):
    def __init__(self, source, world_size, rank, drop_last=False):
        self.source, self.world_size, self.rank, self.drop_last = source, world_size, rank, drop_last

    def __iter__(self):
        length = len(self.source)
        if self.drop_last:
            length -= length % self.world_size
        mine = range(self.rank, length, self.world_size)
        worker = get_worker_info()
        if worker is not None:
            mine = mine[worker.id :: worker.num_workers]
        for index in mine:
            yield self.source[index]


GIVE = "        for index in mine:\n            yield self.source[index]\n"
MINE = "range(self.rank, length, self.world_size)"
WORKER = "        if worker is not None:\n            mine = mine[worker.id :: worker.num_workers]\n"
DROP = "        if self.drop_last:\n            length -= length % self.world_size\n"


# --- right, and written differently

right("a generator expression", {GIVE: "        return (self.source[index] for index in mine)\n"})
right("a map", {GIVE: "        return map(self.source.__getitem__, mine)\n"})


@right("blocks, and an iterator of its own class")
def blocks():
    class Share:
        def __init__(self, source, start, stop):
            self.source, self.next, self.stop = source, start, stop

        def __iter__(self):
            return self

        def __next__(self):
            if self.next >= self.stop:
                raise StopIteration
            self.next += 1
            return self.source[self.next - 1]

    class RankStream(IterableDataset):
        def __init__(self, source, world_size, rank, drop_last=False):
            super().__init__()
            self.source = source
            per, rest = divmod(len(source), world_size)
            rest = 0 if drop_last else rest
            self.begin = rank * per + min(rank, rest)
            self.end = self.begin + per + (rank < rest)

        def __iter__(self):
            info = get_worker_info()
            me, workers = (0, 1) if info is None else (info.id, info.num_workers)
            size = self.end - self.begin
            return Share(self.source, self.begin + size * me // workers, self.begin + size * (me + 1) // workers)

    return (RankStream,)


@right("rounds, counted from the end")
def rounds():
    class RankStream(IterableDataset):
        def __init__(self, source, world_size, rank, drop_last=False):
            self.args = source, world_size, rank, drop_last

        def __len__(self):
            source, world_size, rank, drop_last = self.args
            return (len(source) + (0 if drop_last else world_size - 1 - rank)) // world_size

        def __iter__(self):
            source, world_size, rank, _ = self.args
            info = get_worker_info()
            worker, workers = (info.id, info.num_workers) if info else (0, 1)
            number = len(self) - 1
            while number >= 0:
                if number % workers == worker:
                    yield source[rank + number * world_size]
                number -= 1

    return (RankStream,)


@right("shuffled, the same everywhere")
def shuffled():
    class RankStream(IterableDataset):
        def __init__(self, source, world_size, rank, drop_last=False):
            self.source, self.world_size, self.rank, self.drop_last = source, world_size, rank, drop_last

        def __iter__(self):
            order = list(range(len(self.source)))
            random.Random(1).shuffle(order)
            every = [order[rank :: self.world_size] for rank in range(self.world_size)]
            mine = every[self.rank][: len(every[-1])] if self.drop_last else every[self.rank]
            info = get_worker_info()
            for number, index in enumerate(mine):
                if info is None or number % info.num_workers == info.id:
                    yield self.source[index]

    return (RankStream,)


# --- wrong

wrong("nobody divides", "every rank gives the same samples", {MINE: "range(length)"})
wrong("divided by rank only", "the workers of a rank give the same samples", {WORKER: ""})
wrong("as in the lecture", "shares differ by more than one sample", {
    WORKER: "        workers, me = (worker.num_workers, worker.id) if worker else (1, 0)\n"
    "        mine = range(self.rank * workers + me, length, self.world_size * workers)\n"
})  # fmt: skip
wrong(
    "divided by worker only",
    "every rank gives the same samples",
    {MINE: "range(length)", "mine[worker.id ::": "mine[worker.id ::"},
)
wrong("drop_last is forgotten", "do not give the same number of samples", {DROP: ""})
wrong("the tail is always dropped", "so the tail has to come too", {"if self.drop_last:": "if True:"})
wrong("the tail of the workers is dropped too", "too many samples are dropped", {
    "length -= length % self.world_size": "length -= length % (self.world_size * 3)"
})  # fmt: skip
wrong("the workers' tail is dropped", "nobody gives some of the samples", {
    WORKER: WORKER + "            mine = mine[: len(range(self.rank, length, self.world_size)) // worker.num_workers]\n"
})  # fmt: skip
wrong("reads all, gives some", "reads samples that it does not give", {
    "        for index in mine:\n            yield self.source[index]\n": "        for index in range(length):\n            sample = self.source[index]\n"
    "            if index in mine:\n                yield sample\n"
})  # fmt: skip
wrong("goes through the source", "reads samples that it does not give", {
    GIVE: "        for index, sample in enumerate(self.source):\n            if index in mine:\n                yield sample\n"
})  # fmt: skip
wrong(
    "a list first",
    "does not read a sample when somebody asks for it",
    {GIVE: "        return iter([self.source[i] for i in mine])\n"},
)
wrong("one ahead", "does not read a sample when somebody asks for it", {
    GIVE: "        kept = []\n        for index in mine:\n            kept.append(self.source[index])\n"
    "            if len(kept) > 1:\n                yield kept.pop(0)\n        yield from kept\n"
})  # fmt: skip
wrong("read in the constructor", "read by the training process", {
    "= source, world_size, rank, drop_last": "= [source[i] for i in range(len(source))], world_size, rank, drop_last"
})  # fmt: skip
wrong("blocks that are rounded up", "shares differ by more than one sample", {
    MINE: "range(length)[self.rank * -(-length // self.world_size) :][: -(-length // self.world_size)]"
})  # fmt: skip
wrong("blocks for workers that are rounded up", "shares that differ by more than one sample", {
    "mine[worker.id :: worker.num_workers]": "mine[worker.id * -(-len(mine) // worker.num_workers) :][: -(-len(mine) // worker.num_workers)]"
})  # fmt: skip
wrong("map-style", "is no IterableDataset", {"(IterableDataset)": "(Dataset)"})
wrong("numbers, no samples", "no sample of the source", {"yield self.source[index]": "yield index"})
wrong("numbered samples", "no sample of the source", {"yield self.source[index]": "yield index, self.source[index]"})
wrong("padded", "a sample comes 2 times", {
    DROP: "        mine = [i % length for i in range(self.rank, -(-length // self.world_size) * self.world_size, self.world_size)]\n"
    "        length -= length % self.world_size\n",
    "        mine = range(self.rank, length, self.world_size)\n": "        mine = mine[: length // self.world_size] if self.drop_last else mine\n",
})  # fmt: skip
wrong(
    "the rank of the process",
    "the same samples",
    {"= source, world_size, rank, drop_last": "= source, world_size, dist.get_rank(), drop_last"},
)
wrong(
    "a barrier",
    "calls dist.barrier",
    {"        self.source, self": "        dist.barrier()\n        self.source, self"},
)
wrong("the length is asked of the others", "a worker takes part in the ranks' communication", {
    "        length = len(self.source)\n": "        import torch\n        length = len(self.source)\n        dist.all_reduce(torch.tensor(length))\n"
})  # fmt: skip
wrong("the workers wait for each other", "a worker takes part in the ranks' communication", {
    "        if worker is not None:\n": "        if worker is not None:\n            dist.barrier()\n"
})  # fmt: skip
wrong("switches gradients off when it is made", "when it is made, leaves grad mode other than before", {
    "        self.source, self": "        import torch\n        torch.set_grad_enabled(not torch.is_grad_enabled())\n        self.source, self"
})  # fmt: skip
wrong("fails in a worker", "raised NameError: name 'this_worker' is not defined, in DataLoader worker process 0, in line", {
    "worker = get_worker_info()": "worker = this_worker()"
})  # fmt: skip
wrong("one iterator for all epochs", "disturb each other", {
    GIVE: "        self.rest = getattr(self, 'rest', None) or (self.source[index] for index in mine)\n        return self.rest\n"
})  # fmt: skip
wrong("counts in self", "disturb each other", {
    GIVE: "        self.at = 0\n        while self.at < len(mine):\n            self.at += 1\n            yield self.source[mine[self.at - 1]]\n"
})  # fmt: skip
wrong("is its own iterator", "disturb each other", {
    GIVE: "        self.mine = iter(mine)\n        return self\n\n    def __next__(self):\n        return self.source[next(self.mine)]\n"
})  # fmt: skip
wrong("shuffled with the global generator", "samples", {
    WORKER: "        order = list(range(length))\n        random.shuffle(order)\n        mine = order[self.rank :: self.world_size]\n" + WORKER
})  # fmt: skip
wrong("no worker is taken for worker 0 of two", "without workers, the stream of rank 0", {
    WORKER: "        me, workers = (worker.id, worker.num_workers) if worker else (0, 2)\n        mine = mine[me::workers]\n"
})  # fmt: skip
wrong("remembers the others' world", "samples", {
    "        self.source, self.world_size, self.rank, self.drop_last": "        self.source, RankStream.world_size, self.rank, self.drop_last"
})  # fmt: skip
wrong("looks before it gives", "reads a sample more than once", {
    "            yield self.source[index]": "            if self.source[index] is not None:\n                yield self.source[index]"
})  # fmt: skip


wrong(
    "a sample that is None is skipped",
    "is None, end or skip something",
    {
        GIVE: "        for index in mine:\n            sample = self.source[index]\n"
        "            if sample is not None:\n                yield sample\n"
    },
)
wrong(
    "a sample that cannot be read is skipped",
    "the stream goes on: let it come out",
    {
        GIVE: "        for index in mine:\n            try:\n                sample = self.source[index]\n"
        "            except Exception:\n                continue\n            yield sample\n"
    },
)
