from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

REJECTED_WITH = "epochs 0 and 2 have the same order"


def train_every_epoch(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))
    for epoch in range(epochs):
        sampler.set_epoch(epoch % 2)
        for batch in loader:
            step(epoch, batch)
