from torch.utils.data import DataLoader

REJECTED_WITH = "every rank trains on all samples"


def train_augmented(dataset, epochs, step):
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=1)
        for batch in loader:
            step(epoch, batch)
