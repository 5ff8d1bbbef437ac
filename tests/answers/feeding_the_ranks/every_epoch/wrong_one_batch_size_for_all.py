from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

REJECTED_WITH = "these are not batches of 4"


def train_every_epoch(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=2, drop_last=False))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)
