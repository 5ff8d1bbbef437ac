from torch.utils.data import DataLoader, DistributedSampler

REJECTED_WITH = "evaluate(epoch) is called once after each epoch"


def train_resumed(dataset, first, epochs, step, evaluate):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    sampler.set_epoch(first)
    batches = iter(loader)
    for epoch in range(first, epochs):
        for batch in batches:
            step(epoch, batch)
        sampler.set_epoch(epoch + 1)
        batches = iter(loader)
