from torch.utils.data import DataLoader, DistributedSampler


def train_every_epoch(dataset, epochs, step):
    for epoch in range(epochs):
        sampler = DistributedSampler(dataset, seed=1000 + epoch)
        loader = DataLoader(dataset, batch_size=4, sampler=sampler)
        for batch in loader:
            step(epoch, batch)
