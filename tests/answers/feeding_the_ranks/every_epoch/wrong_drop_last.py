from torch.utils.data import DataLoader, DistributedSampler

REJECTED_WITH = "a part of the samples is left out"


def train_every_epoch(dataset, epochs, step):
    sampler = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)
