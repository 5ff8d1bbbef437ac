import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

REJECTED_WITH = "the ranks shuffle differently in epoch"


def train_every_epoch(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))
    for epoch in range(epochs):
        sampler.set_epoch(epoch * dist.get_world_size() + dist.get_rank())
        for batch in loader:
            step(epoch, batch)
