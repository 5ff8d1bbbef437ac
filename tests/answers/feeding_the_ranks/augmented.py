"""Exercise 5 of the lab on feeding the ranks: the data set's epoch reaches its workers. What is not here is in the official solution."""

import random

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

SAMPLER = "    sampler = DistributedSampler(dataset)\n"
LOADER = "    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)\n"
TELL_DATA = "        dataset.set_epoch(epoch)\n"
right("a new loader in each epoch", {LOADER: "", TELL_DATA: TELL_DATA + "    " + LOADER})


class OfNumber(Dataset):
    """Its epoch is a number that others can change: in shared memory, in a file without a name, or with a server."""

    def __init__(self, dataset, read):
        self.dataset, self.read = dataset, read

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        self.dataset.set_epoch(self.read())
        return self.dataset[index]


def train(dataset, epochs, step, read, write):
    shared = OfNumber(dataset, read)
    sampler = DistributedSampler(shared)
    loader = DataLoader(shared, batch_size=4, sampler=sampler, num_workers=2, persistent_workers=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        write(epoch)
        for batch in loader:
            step(epoch, batch)


def train_by_value(dataset, epochs, step, number):
    train(dataset, epochs, step, lambda: number.value, lambda epoch: setattr(number, "value", epoch))


@right("shared memory, persistent workers")
def shared_memory():
    def train_augmented(dataset, epochs, step):
        now = torch.zeros(1, dtype=torch.int64).share_memory_()
        train(dataset, epochs, step, now.item, now.fill_)

    return (train_augmented,)


@right("each worker is told when it starts, an order of one's own")
def told_at_the_start():
    def train_augmented(dataset, epochs, step):
        rank, ranks, length = dist.get_rank(), dist.get_world_size(), len(dataset)
        for epoch in range(epochs):
            order = random.Random(epoch).sample(range(length), length) * ranks
            mine = order[rank : -(-length // ranks) * ranks : ranks]
            batches = [mine[place : place + 4] for place in range(0, len(mine), 4)]

            def tell(worker, epoch=epoch):
                get_worker_info().dataset.set_epoch(epoch)

            for batch in DataLoader(dataset, batch_sampler=batches, num_workers=1, worker_init_fn=tell):
                step(epoch, batch)

    return (train_augmented,)


wrong("told when workers start", "the workers keep the data set of the first epoch", {
    SAMPLER: SAMPLER + "    now = {'epoch': 0}\n", TELL_DATA: "        now['epoch'] = epoch\n",
    "num_workers=1)": "num_workers=1, persistent_workers=True, "
    "worker_init_fn=lambda _: get_worker_info().dataset.set_epoch(now['epoch']))",
})  # fmt: skip
wrong("the sampler is lost on the way", "every rank trains on all samples", {"sampler=sampler": "shuffle=True"})
wrong("without workers", "read by the training process itself", {", num_workers=1)": ")"})
