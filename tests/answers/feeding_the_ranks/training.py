"""Exercise 1 of the lab on feeding the ranks: a sampler for training."""

# ruff: noqa: F401 (modules that changed answers use)
import itertools
import math
import os
import random
import time

import numpy
import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.utils.data import DistributedSampler, Sampler


class TrainingSampler:
    def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
        self.length, self.world_size, self.rank = len(dataset), world_size, rank
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        if self.drop_last:
            return self.length // self.world_size
        return math.ceil(self.length / self.world_size)

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        total = len(self) * self.world_size
        repeated = order * math.ceil(total / self.length)
        return iter(repeated[self.rank : total : self.world_size])


EQUAL = {
    "42: other operator in `self.seed + self.epoch`": "another seed for each epoch, too",
    "45: other operator in `total / self.length`": "more repetitions than needed are cut off",
}
SEED = "manual_seed(self.seed + self.epoch)"
ORDER = "        order = torch.randperm(self.length, generator=generator).tolist()\n"
GENERATOR = "        generator = torch.Generator().manual_seed(self.seed + self.epoch)\n"
REPEATED = "order * math.ceil(total / self.length)"
GIVES = "        return iter(repeated[self.rank : total : self.world_size])"
MADE = "        self.seed, self.drop_last, self.epoch = seed, drop_last, 0\n"
TOLD = "        self.epoch = epoch\n"


# --- right, and written differently


@right("Python's own generator, and an endless circle that is cut off")
def endless_circle():
    class TrainingSampler(Sampler):
        def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
            self.length, self.world_size, self.rank, self.drop_last = len(dataset), world_size, rank, drop_last
            self.seed, self.epoch = seed, 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __len__(self):
            return (self.length + (0 if self.drop_last else self.world_size - 1)) // self.world_size

        def __iter__(self):
            order = random.Random(f"{self.seed} {self.epoch}").sample(range(self.length), self.length)
            return itertools.islice(itertools.cycle(order), self.rank, len(self) * self.world_size, self.world_size)

    return (TrainingSampler,)


@right("neighbouring blocks of an order that numpy makes; the padding wraps around")
def blocks():
    class TrainingSampler:
        def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
            self.dataset, self.world_size, self.rank, self.seed = dataset, world_size, rank, seed
            self.share = len(dataset) // world_size if drop_last else -(-len(dataset) // world_size)
            self.set_epoch(0)

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __len__(self):
            return self.share

        def __iter__(self):
            order = numpy.random.default_rng([self.seed, self.epoch]).permutation(len(self.dataset))
            for place in range(self.rank * self.share, (self.rank + 1) * self.share):
                yield int(order[place % len(order)])

    return (TrainingSampler,)


@right("an order that set_epoch makes, the end of another padding, sorted random numbers")
def made_by_set_epoch():
    class TrainingSampler:
        def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
            self.n, self.dealt, self.drop_last, self.seed = len(dataset), (rank, world_size), drop_last, seed
            self.set_epoch(epoch=0)

        def set_epoch(self, epoch):
            dice = random.Random(1_000_003 * self.seed + epoch)
            order = sorted(range(self.n), key=lambda _: dice.random())
            rank, ranks = self.dealt
            if self.drop_last:
                order = order[self.n % ranks :]
            while len(order) % ranks:
                order.append(order[len(order) - self.n])
            self.mine = order[ranks - 1 - rank :: ranks]

        def __len__(self):
            return len(self.mine)

        def __iter__(self):
            yield from self.mine

    return (TrainingSampler,)


@right("the global generator in a fork, a tensor of rounds")
def forked():
    class TrainingSampler:
        def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
            vars(self).update(locals())
            self.epoch = 0

        def set_epoch(self, epoch):
            self.epoch = int(epoch)

        def __len__(self):
            return divmod(len(self.dataset) - (not self.drop_last), self.world_size)[0] + (not self.drop_last)

        def __iter__(self):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(hash((self.seed, self.epoch)))
                order = torch.randperm(len(self.dataset))
            places = torch.arange(len(self) * self.world_size) % len(order)
            return iter(order[places].view(-1, self.world_size)[:, self.rank].tolist())

    return (TrainingSampler,)


# --- wrong: who gets what

wrong(
    "always drops",
    "drop_last is False, so no sample may be lost",
    {"if self.drop_last:": "if True:", REPEATED: "order"},
)
wrong("pads in spite of drop_last", "drop_last is True, so what does not fill a round is left out", {
    "if self.drop_last:": "if False:"
})  # fmt: skip
wrong("counted from one", "there is no sample", {"generator=generator)": "generator=generator).add(1)"})
wrong("dropped before shuffling", "in every epoch the same samples are left out", {
    ORDER: "        kept = min(self.length, len(self) * self.world_size)\n" + ORDER.replace("self.length", "kept")
})  # fmt: skip
wrong(
    "the first share for all", "all ranks have the same samples", {"self.rank : total : self.world_size": ": len(self)"}
)
wrong("no padding", "the ranks have different numbers of samples: a rank with fewer", {REPEATED: "order"})
wrong("the padding is too short", "the padding is longer than the data set", {
    REPEATED: "order + order[: total - self.length]"
})  # fmt: skip
wrong("padded with one sample", "the padding takes the same sample again and again", {
    REPEATED: "order + order[:1] * (total - self.length)"
})  # fmt: skip
wrong("padded with the first ones", "in every epoch the same samples are repeated", {
    REPEATED: "order + list(range(self.length)) * math.ceil(total / self.length)"
})  # fmt: skip
wrong("padded before shuffling", "in every epoch the same samples are repeated", {
    ORDER: "        total = len(self) * self.world_size\n"
    "        samples = (list(range(self.length)) * math.ceil(total / self.length))[:total]\n"
    "        order = [samples[place] for place in torch.randperm(total, generator=generator).tolist()]\n",
    REPEATED: "order",
})  # fmt: skip
wrong("the whole data set", "every rank has the whole data set", {GIVES: "        return iter(order)"})
wrong("the length of the data set", "len(sampler) is not the number of indices of this rank", {
    "def __len__(self):": "def __len__(self):\n        return self.length\n\n    def share(self):", "len(self)": "self.share()"
})  # fmt: skip
wrong("tensors", "a sampler gives plain ints, and this one gives a Tensor", {
    "generator=generator).tolist()": "generator=generator)", REPEATED: "list(order) * math.ceil(total / self.length)"
})  # fmt: skip
wrong("reads the samples", "the sampler reads samples of the data set", {"len(dataset)": "len(list(dataset))"})
wrong(
    "four ranks always",
    "in epoch 0, ",
    {"self.length, self.world_size": "world_size = 4; self.length, self.world_size"},
)
wrong("rest on the last rank", "different numbers of samples", {
    "        if self.drop_last:\n            return self.length // self.world_size\n": "",
    REPEATED: "order", GIVES: "        share = self.length // self.world_size\n"
    "        last = None if self.rank == self.world_size - 1 else (self.rank + 1) * share\n"
    "        return iter(order[self.rank * share : last])",
})  # fmt: skip
wrong("the rank of the process", "all ranks have the same samples", {
    "self.length, self.world_size, self.rank = len(dataset), world_size, rank":
    "self.length, self.world_size, self.rank = len(dataset), world_size, dist.get_rank() % world_size"
})  # fmt: skip
wrong("the hash of a text", "makes other orders in another process", {
    "manual_seed(self.seed + self.epoch)": "manual_seed(hash(f'{self.seed}, {self.epoch}') % 2**31)"
})  # fmt: skip
wrong("half the seed", "the seed does not change the order", {SEED: "manual_seed(self.seed // 2 + self.epoch)"})
wrong("drop_last by default", "without the last arguments", {"drop_last=False": "drop_last=True"})


# --- wrong: the order

wrong("even and odd epochs", "epochs 0 and 2 are alike", {"self.seed + self.epoch": "self.seed + self.epoch % 2"})
wrong("four epochs", "epochs 0 and 4 are alike", {"self.seed + self.epoch": "self.seed + self.epoch % 4"})
wrong("the generator is kept", "the same epoch gives another order the second time", {
    MADE: MADE + "        self.generator = torch.Generator().manual_seed(seed)\n", GENERATOR: "",
    "generator=generator": "generator=self.generator",
})  # fmt: skip
wrong("orders are remembered", "a new sampler gives epoch 1 another order", {
    MADE: MADE + "        self.generator, self.orders = torch.Generator().manual_seed(seed), {}\n",
    GENERATOR: "        if self.epoch not in self.orders:\n            self.orders[self.epoch] = "
    "torch.randperm(self.length, generator=self.generator).tolist()\n",
    ORDER: "        order = self.orders[self.epoch]\n",
})  # fmt: skip
wrong("orders are remembered for all samplers", "there is no sample", {
    "class TrainingSampler:\n": "orders = {}\n\n\nclass TrainingSampler:\n",
    ORDER: "        key = self.seed + self.epoch\n        if key not in orders:\n            orders[key] = "
    "torch.randperm(self.length, generator=generator).tolist()\n        order = orders[key]\n",
})  # fmt: skip
wrong("the global generator", "torch's random numbers other than before: put back what you change. The model needs them", {
    GENERATOR: "", ", generator=generator": ""
})  # fmt: skip
wrong("seeds the global generator", "torch's random numbers other than before", {
    GENERATOR: "        torch.manual_seed(self.seed + self.epoch)\n", ", generator=generator": ""
})  # fmt: skip
wrong("Python's generator is seeded", "leaves Python's random numbers other", {
    GENERATOR: "        random.seed(self.seed + self.epoch)\n", ORDER: "        order = random.sample(range(self.length), self.length)\n"
})  # fmt: skip
wrong("numpy's generator is seeded", "leaves numpy's random numbers other", {
    GENERATOR: "        numpy.random.seed(self.seed + self.epoch)\n",
    ORDER: "        order = numpy.random.permutation(self.length).tolist()\n",
})  # fmt: skip
wrong("the seed is ignored", "the seed does not change the order", {SEED: "manual_seed(self.epoch)"})
wrong("the seed of epoch 0 only", "are alike", {SEED: "manual_seed(self.seed or self.epoch)"})
wrong("seed times epoch", "the seed does not change the order", {SEED: "manual_seed((self.seed + 1) * self.epoch)"})
wrong("the seed of the rank", "all ranks make the same order, from seed and epoch", {
    SEED: "manual_seed(self.seed + self.epoch + self.rank)"
})  # fmt: skip
wrong(
    "the seed of the process",
    "makes other orders in another process",
    {SEED: "manual_seed(self.seed + self.epoch + os.getpid())"},
)
wrong(
    "set_epoch has no effect", "set_epoch does not change the order: epochs 0 and 1", {SEED: "manual_seed(self.seed)"}
)
wrong("set_epoch is empty", "set_epoch does not change the order", {TOLD: "        pass\n"})
wrong("set_epoch counts by itself", "the same epoch gives another order", {TOLD: "        self.epoch += 1\n"})
wrong("begins with epoch 1", "before the first set_epoch, the epoch is 0", {MADE: MADE.replace(", 0", ", 1")})
wrong("not shuffled", "the samples are not shuffled", {ORDER: "        order = list(range(self.length))\n"})
wrong("shuffles its own share", "keeps the samples that it had", {
    GENERATOR + ORDER: "        order = list(range(self.length))\n",
    GIVES: "        own = repeated[self.rank : total : self.world_size]\n"
    "        generator = torch.Generator().manual_seed(self.seed + self.epoch)\n"
    "        return iter([own[place] for place in torch.randperm(len(own), generator=generator)])",
})  # fmt: skip
wrong("turns the order", "samples that follow each other in one epoch do so in another too", {
    SEED: "manual_seed(self.seed)",
    ORDER: ORDER + "        cut = (self.epoch + self.seed) * 7 % self.length\n        order = order[cut:] + order[:cut]\n",
})  # fmt: skip


@wrong("goes on where somebody has stopped", "no sample may be lost")
def goes_on():
    class TrainingSampler:
        def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
            self.length, self.world_size, self.rank, self.seed, self.place = len(dataset), world_size, rank, seed, 0
            self.share = self.length // world_size if drop_last else -(-self.length // world_size)
            self.epoch = 0

        def set_epoch(self, epoch):
            self.epoch, self.place = epoch, 0

        def __len__(self):
            return self.share

        def __iter__(self):
            order = random.Random(f"{self.seed} {self.epoch}").sample(range(self.length), self.length)
            while self.place < self.share:
                self.place += 1
                yield order[(self.rank + (self.place - 1) * self.world_size) % self.length]
            self.place = 0

    return (TrainingSampler,)


# --- wrong: what else is touched, and no work of one's own

wrong("from the library", "DistributedSampler, which does the exercise", {
    "class TrainingSampler:": "class TrainingSampler(DistributedSampler):", MADE: MADE + "        super().__init__(dataset, world_size, rank, True, seed, drop_last)\n"
})  # fmt: skip


@wrong("the library's iteration", "DistributedSampler.__iter__, which does the exercise")
def librarys_iteration():
    class TrainingSampler(DistributedSampler):
        def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
            self.dataset, self.num_replicas, self.rank, self.epoch, self.seed = dataset, world_size, rank, 0, seed
            self.drop_last, self.shuffle = drop_last, True
            self.num_samples = len(dataset) // world_size if drop_last else -(-len(dataset) // world_size)
            self.total_size = self.num_samples * world_size

    return (TrainingSampler,)


wrong(
    "the data set is marked",
    "after TrainingSampler, `dataset` has attributes",
    {MADE: MADE + "        dataset.sampler = self\n"},
)
wrong(
    "asks the other ranks",
    "calls dist.all_reduce, and may call nothing",
    {GIVES: "        dist.all_reduce(torch.ones(1))\n" + GIVES},
)
wrong("a file", "writes a file", {GIVES: "        open('order.txt', 'w').close()\n" + GIVES})
wrong(
    "an environment variable",
    "leaves the environment variables other",
    {TOLD: TOLD + "        os.environ['EPOCH'] = str(epoch)\n"},
)
wrong("the course's own module", "uses lessons.training.feeding", {
    GIVES: "        import lessons.training.feeding\n" + GIVES
})  # fmt: skip
wrong("every second epoch", "not every number that set_epoch gets has an order of its own", {
    SEED: "manual_seed(self.seed + self.epoch // 2)"
})  # fmt: skip
wrong("can be read once", "does each call of __iter__ begin anew", {
    GIVES: GIVES.replace("return iter(", "iterator = iter(") + "\n"
    "        self.kept = getattr(self, 'kept', {})\n        return self.kept.setdefault(self.epoch, iterator)"
})  # fmt: skip
wrong("a full round is left out", "more is left out than what does not fill a round", {
    "return self.length // self.world_size": "return (self.length - 1) // self.world_size"
})  # fmt: skip


wrong(
    "its own iterator, which begins anew",
    "two iterators of one sampler disturb each other",
    {
        GIVES: "        self.rest = repeated[self.rank : total : self.world_size]\n        return self\n\n"
        "    def __next__(self):\n        if not self.rest:\n            raise StopIteration\n        return self.rest.pop(0)"
    },
)
