from torch.utils.data import DataLoader, DistributedSampler

REJECTED_WITH = "does not train these epochs, in this order"


def train_resumed(dataset, first, epochs, step, evaluate):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    sampler.set_epoch(0)
    batches = iter(loader)
    for epoch in range(epochs):
        for batch in batches:
            step(epoch, batch)
        sampler.set_epoch(epoch + 1)
        batches = iter(loader)
        evaluate(epoch)
