"""Exercise 1 of the lab on feeding the ranks: a sampler for training. What is not here is in the official solution."""

import itertools
import random

import numpy
from known_answers import right, wrong
from torch.utils.data import Sampler

SEED = "manual_seed(self.seed + self.epoch)"
GENERATOR = "        generator = torch.Generator().manual_seed(self.seed + self.epoch)\n"
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


wrong("tensors", "a sampler gives plain ints", {
    "generator=generator).tolist()": "generator=generator)", REPEATED: "list(order) * math.ceil(total / self.length)"
})  # fmt: skip
wrong("no padding", "different numbers of samples: a rank with fewer", {REPEATED: "order"})
wrong("padded with the first ones", "in every epoch the same samples are repeated", {
    REPEATED: "order + list(range(self.length)) * math.ceil(total / self.length)"
})  # fmt: skip
wrong("the generator is kept", "the second time, the sampler gives other indices", {
    MADE: MADE + "        self.generator = torch.Generator().manual_seed(seed)\n", GENERATOR: "",
    "generator=generator": "generator=self.generator",
})  # fmt: skip
wrong("the seed of the rank", "all ranks make the same order", {SEED: SEED[:-1] + " + self.rank)"})
