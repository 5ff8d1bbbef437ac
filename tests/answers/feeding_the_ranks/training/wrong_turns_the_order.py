import math

import torch

REJECTED_WITH = "samples that follow each other do so in the next epoch too"


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
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(self.length, generator=generator).tolist()
        cut = (self.epoch + self.seed) * 7 % self.length
        order = order[cut:] + order[:cut]
        total = len(self) * self.world_size
        repeated = order * math.ceil(total / self.length)
        return iter(repeated[self.rank : total : self.world_size])
