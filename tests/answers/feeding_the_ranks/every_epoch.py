"""Exercise 3 of the lab on feeding the ranks: every epoch is shuffled anew. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.utils.data import DataLoader, DistributedSampler

TELL = "        sampler.set_epoch(epoch)\n"
SAMPLER = "    sampler = DistributedSampler(dataset)\n"
LOADER = "    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))\n"
right("the sampler of the batch sampler", {TELL: "        loader.batch_sampler.sampler.set_epoch(epoch)\n"})


@right("a new loader in each epoch, with workers")
def new_loader():
    def train_every_epoch(dataset, epochs, step):
        for epoch in range(epochs):
            sampler = DistributedSampler(dataset, seed=1000 + epoch)
            loader = DataLoader(dataset, 4, sampler=sampler, num_workers=1 + epoch % 2, persistent_workers=True)
            for batch in loader:
                step(epoch, batch)

    return (train_every_epoch,)


@right("no loader at all, an order of one's own, tuples")
def by_hand():
    def train_every_epoch(dataset, epochs, step):
        rank, ranks, length = dist.get_rank(), dist.get_world_size(), len(dataset)
        for epoch in range(epochs):
            order = torch.randperm(length, generator=torch.Generator().manual_seed(epoch))
            mine = order.repeat(ranks)[rank : -(-length // ranks) * ranks : ranks].tolist()
            for place in range(0, len(mine), 4):
                step(epoch, tuple(dataset[index] for index in mine[place : place + 4]))

    return (train_every_epoch,)


wrong("as given", "has to hear of each epoch", {
    TELL: '        if hasattr(loader.sampler, "set_epoch"):\n            loader.sampler.set_epoch(epoch)\n'
})  # fmt: skip
wrong(
    "a new sampler without the epoch",
    "has to hear of each epoch",
    {TELL: (SAMPLER + LOADER).replace("    ", "        ")},
)
wrong("drop_last", "a part of the samples is left out", {"drop_last=False": "drop_last=True"})
wrong(
    "the rank is forgotten", "all ranks see the same samples", {"(dataset)\n": "(dataset, dist.get_world_size(), 0)\n"}
)
wrong("shuffled without a sampler", "every rank trains on all samples", {
    LOADER: "    loader = DataLoader(dataset, batch_size=4, shuffle=True)\n"
})  # fmt: skip
