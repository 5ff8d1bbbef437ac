from torch.utils.data import DataLoader, DistributedSampler, get_worker_info

REJECTED_WITH = "the workers keep the data set of the first epoch"


def train_augmented(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    now = {"epoch": 0}

    def tell(worker):
        get_worker_info().dataset.set_epoch(now["epoch"])

    loader = DataLoader(
        dataset, batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True, worker_init_fn=tell
    )
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        now["epoch"] = epoch
        for batch in loader:
            step(epoch, batch)
