from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

REJECTED_WITH = "all ranks see the same samples"


def train_every_epoch(dataset, epochs, step):
    sampler = DistributedSampler(dataset, num_replicas=2, rank=0)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)
