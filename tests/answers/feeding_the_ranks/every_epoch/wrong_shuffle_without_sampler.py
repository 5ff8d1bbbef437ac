from torch.utils.data import DataLoader

REJECTED_WITH = "every rank trains on all samples"


def train_every_epoch(dataset, epochs, step):
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    for epoch in range(epochs):
        for batch in loader:
            step(epoch, batch)
