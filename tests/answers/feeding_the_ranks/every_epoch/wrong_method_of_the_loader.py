from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

REJECTED_WITH = "raised AttributeError"


def train_every_epoch(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))
    for epoch in range(epochs):
        loader.batch_sampler.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)
