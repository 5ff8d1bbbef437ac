"""Exercise 3 of the lab on feeding the ranks: every epoch is shuffled anew. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.utils.data import DataLoader, DistributedSampler, Subset

TELL = "        sampler.set_epoch(epoch)\n"
STEP = "            step(epoch, batch)"
SAMPLER = "    sampler = DistributedSampler(dataset)\n"
LOADER = "    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))\n"
right("the sampler of the batch sampler", {TELL: "        loader.batch_sampler.sampler.set_epoch(epoch)\n"})
right("shares without padding", {
    SAMPLER: "    sampler = DistributedSampler(dataset)\n"
    "    sampler.num_samples = len(range(sampler.rank, len(dataset), sampler.num_replicas))\n"
    "    sampler.total_size = len(dataset)\n"
})  # fmt: skip


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


@right("rank 0 draws the order for all, in blocks")
def broadcast():
    def train_every_epoch(dataset, epochs, step):
        rank, ranks, length = dist.get_rank(), dist.get_world_size(), len(dataset)
        share = -(-length // ranks)
        for epoch in range(epochs):
            order = torch.randperm(length)
            dist.broadcast(order, src=0)
            places = torch.arange(rank * share, (rank + 1) * share) % length
            for batch in DataLoader(Subset(dataset, order[places].tolist()), batch_size=4):
                step(epoch, batch)

    return (train_every_epoch,)


@right("the iterator of the next epoch is made early")
def early():
    def train_every_epoch(dataset, epochs, step):
        sampler = DistributedSampler(dataset)
        loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2)
        batches = iter(loader)
        for epoch in range(epochs):
            for batch in batches:
                step(epoch, batch)
            sampler.set_epoch(epoch + 1)
            batches = iter(loader)

    return (train_every_epoch,)


wrong("as given", "has to hear of each epoch", {
    TELL: '        if hasattr(loader.sampler, "set_epoch"):\n            loader.sampler.set_epoch(epoch)\n'
})  # fmt: skip
wrong("inside the epoch", "the orders are one epoch late", {TELL: "", STEP: "    " + TELL + STEP})
wrong("a method of the batch sampler", "raised AttributeError", {
    TELL: "        loader.batch_sampler.set_epoch(epoch)\n"
})  # fmt: skip
wrong(
    "a new sampler without the epoch",
    "has to hear of each epoch",
    {TELL: (SAMPLER + LOADER).replace("    ", "        ")},
)
wrong("drop_last", "a part of the samples is left out", {"drop_last=False": "drop_last=True"})
wrong("the seed of the rank", "the ranks shuffle differently", {"(dataset)\n": "(dataset, seed=dist.get_rank())\n"})
wrong("batches of 2", "these are not batches of 4", {"batch_size=4": "batch_size=2"})
wrong(
    "the rank is forgotten", "all ranks see the same samples", {"(dataset)\n": "(dataset, dist.get_world_size(), 0)\n"}
)
wrong("two ranks always", "the ranks' shares are not", {"(dataset)\n": "(dataset, 2, dist.get_rank() % 2)\n"})
wrong("shuffled without a sampler", "every rank trains on all samples", {
    LOADER: "    loader = DataLoader(dataset, batch_size=4, shuffle=True)\n"
})  # fmt: skip
wrong("one epoch too few", "the epochs that are trained", {"range(epochs)": "range(epochs - 1)"})
wrong("no epoch", "nothing comes to step", {"range(epochs)": "range(0)"})
wrong("counted from one", "the epochs that are trained", {"step(epoch, batch)": "step(epoch + 1, batch)"})
wrong(
    "indices in place of samples",
    "no sample of the data set",
    {"for batch in loader": "for batch in loader.batch_sampler"},
)
wrong("the global generator is seeded", "seeds a global generator", {TELL: TELL + "        torch.manual_seed(epoch)\n"})
wrong("a last batch of one is skipped", "a part of the samples is left out", {
    STEP: "            if len(batch) > 1:\n                step(epoch, batch)"
})  # fmt: skip
