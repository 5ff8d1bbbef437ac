from torch.utils.data import DataLoader, DistributedSampler

REJECTED_WITH = "never hears of the epoch"


def train_resumed(dataset, first, epochs, step, evaluate):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    batches = iter(loader)
    for epoch in range(first, epochs):
        for batch in batches:
            step(epoch, batch)
        batches = iter(loader)
        evaluate(epoch)
