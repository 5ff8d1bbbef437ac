from torch.utils.data import DataLoader, Dataset, DistributedSampler

REJECTED_WITH = "the workers keep the data set of the first epoch"


class WithEpoch(Dataset):
    def __init__(self, dataset):
        self.dataset, self.now = dataset, 0

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        self.dataset.set_epoch(self.now)
        return self.dataset[index]


def train_augmented(dataset, epochs, step):
    wrapped = WithEpoch(dataset)
    sampler = DistributedSampler(wrapped)
    loader = DataLoader(wrapped, batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        wrapped.now = epoch
        for batch in loader:
            step(epoch, batch)
