from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

REJECTED_WITH = "never hears of the epoch"


def train_every_epoch(dataset, epochs, step):
    for epoch in range(epochs):
        sampler = DistributedSampler(dataset)
        loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))
        for batch in loader:
            step(epoch, batch)
