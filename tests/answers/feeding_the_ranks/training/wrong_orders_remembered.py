import math

import torch

REJECTED_WITH = "a new sampler gives epoch 1 another order"


class TrainingSampler:
    def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
        self.length, self.world_size, self.rank = len(dataset), world_size, rank
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0
        self.generator, self.orders = torch.Generator().manual_seed(seed), {}

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        if self.drop_last:
            return self.length // self.world_size
        return math.ceil(self.length / self.world_size)

    def __iter__(self):
        if self.epoch not in self.orders:
            self.orders[self.epoch] = torch.randperm(self.length, generator=self.generator).tolist()
        order = self.orders[self.epoch]
        total = len(self) * self.world_size
        repeated = order * math.ceil(total / self.length)
        return iter(repeated[self.rank : total : self.world_size])
