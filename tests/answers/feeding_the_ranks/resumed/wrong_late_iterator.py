from torch.utils.data import DataLoader, DistributedSampler

REJECTED_WITH = "no worker is up while epoch 0 is evaluated"


def train_resumed(dataset, first, epochs, step, evaluate):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)
        evaluate(epoch)
