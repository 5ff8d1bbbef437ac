from torch.utils.data import DataLoader, DistributedSampler

REJECTED_WITH = "these are not batches of 4"


def train_augmented(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=12, sampler=sampler, num_workers=1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        dataset.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)
