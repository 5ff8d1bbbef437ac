import math

import torch

REJECTED_WITH = "in every epoch the same samples are repeated"


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
        total = len(self) * self.world_size
        samples = (list(range(self.length)) * math.ceil(total / self.length))[:total]
        order = torch.randperm(total, generator=generator).tolist()
        return iter([samples[place] for place in order[self.rank :: self.world_size]])
