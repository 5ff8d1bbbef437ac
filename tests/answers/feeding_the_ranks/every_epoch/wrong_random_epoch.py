import random

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

REJECTED_WITH = "the ranks shuffle differently in epoch"


def train_every_epoch(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))
    for epoch in range(epochs):
        sampler.set_epoch(random.Random().randrange(10**6))
        for batch in loader:
            step(epoch, batch)
