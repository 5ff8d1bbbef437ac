import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

REJECTED_WITH = "the data set believes in another epoch"


def train_augmented(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        dataset.set_epoch(epoch * dist.get_world_size() + dist.get_rank())
        for batch in loader:
            step(epoch, batch)
