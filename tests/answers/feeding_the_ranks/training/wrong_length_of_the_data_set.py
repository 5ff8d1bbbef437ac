import math

import torch

REJECTED_WITH = "len(sampler) is not the number of indices of this rank"


class TrainingSampler:
    def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
        self.length, self.world_size, self.rank = len(dataset), world_size, rank
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.length

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        total = self.length + (-self.length if not self.drop_last else self.length - 2 * self.length) % self.world_size
        if self.drop_last:
            total = self.length // self.world_size * self.world_size
        repeated = order * math.ceil(total / self.length)
        return iter(repeated[self.rank : total : self.world_size])
