from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

REJECTED_WITH = "the later ones are one epoch late"


def train_every_epoch(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))
    for epoch in range(epochs):
        for batch in loader:
            sampler.set_epoch(epoch)
            step(epoch, batch)
