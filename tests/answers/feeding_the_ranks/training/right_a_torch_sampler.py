import itertools
import random

from torch.utils.data import Sampler


class TrainingSampler(Sampler):
    """Python's own generator, and an endless circle that is cut off."""

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
