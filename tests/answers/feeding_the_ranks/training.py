"""Exercise 1 of the lab on feeding the ranks: a sampler for training. What is not here is in the official solution."""

import itertools
import random

import numpy
import torch
from known_answers import right, wrong
from torch.utils.data import Sampler

SEED = "manual_seed(self.seed + self.epoch)"
GENERATOR = "        generator = torch.Generator().manual_seed(self.seed + self.epoch)\n"
ORDER = "        order = torch.randperm(self.length, generator=generator).tolist()\n"
REPEATED, GIVES = (
    "order * math.ceil(total / self.length)",
    "        return iter(repeated[self.rank : total : self.world_size])",
)
MADE = "        self.seed, self.drop_last, self.epoch = seed, drop_last, 0\n"


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


wrong("counted from one", "there is no sample 40", {"generator=generator)": "generator=generator).add(1)"})
wrong("tensors", "a sampler gives plain ints, and this one gives a Tensor", {
    "generator=generator).tolist()": "generator=generator)", REPEATED: "list(order) * math.ceil(total / self.length)"
})  # fmt: skip
wrong(
    "reads the samples",
    "reads samples of the data set",
    {"self.length, self.world_size": "self.length, self.world_size", "len(dataset)": "len(list(dataset))"},
)
wrong("no padding", "different numbers of samples: a rank with fewer", {REPEATED: "order"})
wrong("the padding is too short", "longer than the data set", {REPEATED: "order + order[: total - self.length]"})
wrong("from the library", "write a class of your own", {
    "class TrainingSampler:": "class TrainingSampler(DistributedSampler):",
    MADE: MADE + "        super().__init__(dataset, world_size, rank, True, seed, drop_last)\n",
})  # fmt: skip
wrong("drop_last by default", "without its last arguments", {"drop_last=False": "drop_last=True"})
wrong("dropped before shuffling", "in every epoch the same samples are left out", {
    ORDER: "        kept = min(self.length, len(self) * self.world_size)\n" + ORDER.replace("self.length", "kept")
})  # fmt: skip
wrong("padded with the first ones", "in every epoch the same samples are repeated", {
    REPEATED: "order + list(range(self.length)) * math.ceil(total / self.length)"
})  # fmt: skip
wrong("the generator is kept", "another order the second time", {
    MADE: MADE + "        self.generator = torch.Generator().manual_seed(seed)\n", GENERATOR: "",
    "generator=generator": "generator=self.generator",
})  # fmt: skip
wrong("seeds the global generator", "changes the state of torch's random generator", {
    GENERATOR: "        torch.manual_seed(self.seed + self.epoch)\n", ", generator=generator": ""
})  # fmt: skip
wrong("numpy's generator is seeded", "changes the state of numpy's random generator", {
    GENERATOR: "        import numpy\n        numpy.random.seed(self.seed + self.epoch)\n",
    ORDER: "        order = numpy.random.permutation(self.length).tolist()\n",
})  # fmt: skip
wrong("the hash of a text", "in another process", {SEED: "manual_seed(hash(f'{self.seed}, {self.epoch}') % 2**31)"})
wrong("the seed is ignored", "the seed does not change the order", {SEED: "manual_seed(self.epoch)"})
wrong("the seed of the rank", "all ranks make the same order", {SEED: SEED[:-1] + " + self.rank)"})
wrong(
    "set_epoch has no effect", "set_epoch does not change the order: epochs 0 and 1", {SEED: "manual_seed(self.seed)"}
)
wrong(
    "set_epoch counts by itself",
    "a new sampler gives epoch 1 another order",
    {"self.epoch = epoch\n": "self.epoch += 1\n"},
)
wrong("begins with epoch 1", "before the first set_epoch, the epoch is 0", {MADE: MADE.replace(", 0", ", 1")})
wrong("not shuffled", "the samples are not shuffled", {ORDER: "        order = list(range(self.length))\n"})
wrong("shuffles its own share", "keeps the samples that it had", {
    GENERATOR + ORDER: "        order = list(range(self.length))\n",
    GIVES: "        own = repeated[self.rank : total : self.world_size]\n" + GENERATOR
    + "        return iter([own[place] for place in torch.randperm(len(own), generator=generator)])",
})  # fmt: skip
wrong("is its own iterator", "two iterators of one sampler disturb each other", {
    GIVES: "        self.rest = repeated[self.rank : total : self.world_size]\n        return self\n\n"
    "    def __next__(self):\n        if not self.rest:\n            raise StopIteration\n        return self.rest.pop(0)"
})  # fmt: skip
