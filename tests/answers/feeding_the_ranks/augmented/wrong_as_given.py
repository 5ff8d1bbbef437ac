from torch.utils.data import DataLoader, DistributedSampler

REJECTED_WITH = "the workers keep the data set of the first epoch"


def train_augmented(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        dataset.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)
