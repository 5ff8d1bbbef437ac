from torch.utils.data import DataLoader, DistributedSampler

REJECTED_WITH = "samples are read by the training process itself"


def train_augmented(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        dataset.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)
