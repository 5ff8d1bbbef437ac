from torch.utils.data import DataLoader, DistributedSampler

REJECTED_WITH = "the later ones are one epoch late"


def train_resumed(dataset, first, epochs, step, evaluate):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    sampler.set_epoch(first)
    batches = iter(loader)
    for epoch in range(first, epochs):
        for batch in batches:
            step(epoch, batch)
        sampler.set_epoch(epoch)
        batches = iter(loader)
        evaluate(epoch)
