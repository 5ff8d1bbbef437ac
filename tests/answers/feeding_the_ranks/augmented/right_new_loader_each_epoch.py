from torch.utils.data import DataLoader, DistributedSampler


def train_augmented(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        dataset.set_epoch(epoch)
        loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
        for batch in loader:
            step(epoch, batch)
