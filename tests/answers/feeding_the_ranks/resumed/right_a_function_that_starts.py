from torch.utils.data import DataLoader, DistributedSampler


def train_resumed(dataset, first, epochs, step, evaluate):
    def start(epoch):
        sampler = DistributedSampler(dataset, seed=epoch)
        return iter(DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2))

    coming = start(first)
    for epoch in range(first, epochs):
        for batch in coming:
            step(epoch, batch)
        if epoch + 1 < epochs:
            coming = start(epoch + 1)
        evaluate(epoch)
