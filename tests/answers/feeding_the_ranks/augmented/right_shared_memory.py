import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class WithEpoch(Dataset):
    """Tells the data set the epoch that stands in shared memory, in whichever process that is."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        self.dataset.set_epoch(self.epoch.item())
        return self.dataset[index]


def train_augmented(dataset, epochs, step):
    shared = WithEpoch(dataset)
    sampler = DistributedSampler(shared)
    loader = DataLoader(shared, batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        shared.epoch.fill_(epoch)
        for batch in loader:
            step(epoch, batch)
