"""Exercise 3 of the lab on feeding the ranks: every epoch is shuffled anew."""

# ruff: noqa: F401 (modules that changed answers use)
import os
import random

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Subset


def train_every_epoch(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)


EQUAL = {"16: train_every_epoch with `dist.barrier()`": "ranks may wait for each other"}
TELL = "        sampler.set_epoch(epoch)\n"
STEP = "            step(epoch, batch)"
SAMPLER = "    sampler = DistributedSampler(dataset)\n"
LOADER = "    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))\n"


# --- right, and written differently


@right("a new loader in each epoch, with workers")
def new_loader():
    def train_every_epoch(dataset, epochs, step):
        for epoch in range(epochs):
            sampler = DistributedSampler(dataset, seed=1000 + epoch)
            loader = DataLoader(dataset, 4, sampler=sampler, num_workers=1 + epoch % 2, persistent_workers=True)
            for batch in loader:
                step(epoch, batch)

    return (train_every_epoch,)


right("the sampler of the batch sampler", {TELL: "        loader.batch_sampler.sampler.set_epoch(epoch)\n"})


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


# --- wrong

wrong("as given", "has to hear of each epoch", {
    TELL: '        if hasattr(loader.sampler, "set_epoch"):\n            loader.sampler.set_epoch(epoch)\n'
})  # fmt: skip
wrong("forgotten", "has to hear of each epoch", {TELL: ""})
wrong("after the epoch", "the later ones are one epoch late", {TELL: "", STEP: STEP + "\n" + TELL})
wrong("inside the epoch", "the later ones are one epoch late", {TELL: "", STEP: "    " + TELL + STEP})
wrong("another sampler", "has to hear of each epoch", {TELL: "        DistributedSampler(dataset).set_epoch(epoch)\n"})
wrong("an attribute of the batch sampler", "has to hear of each epoch", {
    TELL: "        loader.batch_sampler.epoch = epoch\n"
})  # fmt: skip
wrong(
    "a method of the batch sampler", "raised AttributeError", {TELL: "        loader.batch_sampler.set_epoch(epoch)\n"}
)
wrong("a new sampler without the epoch", "has to hear of each epoch", {
    SAMPLER + LOADER: "", TELL: (SAMPLER + LOADER).replace("    ", "        ")
})  # fmt: skip
wrong("drop_last", "a part of the samples is left out", {
    "(dataset)\n": "(dataset, drop_last=True)\n", "drop_last=False": "drop_last=True"
})  # fmt: skip
wrong("the epoch of the rank", "the ranks shuffle differently in epoch", {
    "set_epoch(epoch)": "set_epoch(epoch * dist.get_world_size() + dist.get_rank())"
})  # fmt: skip
wrong("a random epoch", "the ranks shuffle differently in epoch", {
    "set_epoch(epoch)": "set_epoch(random.Random().randrange(10**6))"
})  # fmt: skip
wrong("even and odd", "epochs 0 and 2 have the same order", {"set_epoch(epoch)": "set_epoch(epoch % 2)"})
wrong("pairs of epochs", "the ranks keep the samples that they had", {
    "set_epoch(epoch)": "set_epoch(epoch // 2)", "for batch in loader": "for batch in (reversed(list(loader)) if epoch % 2 else loader)"
})  # fmt: skip
wrong("from the fifth on alike", "have the same order", {"set_epoch(epoch)": "set_epoch(min(epoch, 4))"})
wrong("four epochs", "have the same order: give set_epoch a number that never comes again", {
    "set_epoch(epoch)": "set_epoch(min(epoch, 2))"
})  # fmt: skip
wrong("a rank keeps its share", "keep the samples that they had", {
    "DistributedSampler(dataset)\n": "torch.arange(dist.get_rank(), len(dataset), dist.get_world_size())\n"
    "    sampler = torch.utils.data.SubsetRandomSampler(sampler.tolist() + [0] * (len(sampler) * 2 < len(dataset)))\n",
    TELL: "",
})  # fmt: skip
wrong("all read once more", "samples are read that no step gets", {STEP: STEP + "\n        list(loader)"})
wrong("not shuffled", "the samples are not shuffled at all", {"(dataset)\n": "(dataset, shuffle=False)\n"})
wrong("batches of 2", "these are not batches of 4", {"batch_size=4": "batch_size=2"})
wrong("the rank is forgotten", "all ranks see the same samples", {"(dataset)\n": "(dataset, num_replicas=2, rank=0)\n"})
wrong("two ranks always", "The case: 3 ranks", {"(dataset)\n": "(dataset, num_replicas=2, rank=dist.get_rank() % 2)\n"})
wrong("shuffled without a sampler", "every rank trains on all samples", {
    SAMPLER + LOADER: "    loader = DataLoader(dataset, batch_size=4, shuffle=True)\n", TELL: ""
})  # fmt: skip
wrong("one epoch too few", "does not train these epochs", {"range(epochs)": "range(max(epochs - 1, 1))"})
wrong("counted from one", "does not train these epochs", {"step(epoch, batch)": "step(epoch + 1, batch)"})
wrong("indices in place of samples", "what comes to step is no sample of the data set", {
    "for batch in loader": "for batch in loader.batch_sampler"
})  # fmt: skip
wrong(
    "the global generator is seeded",
    "the seed of torch's random numbers other",
    {TELL: TELL + "        torch.manual_seed(epoch)\n"},
)
wrong(
    "Python's generator is seeded",
    "leaves Python's random numbers other",
    {TELL: TELL + "        random.seed(epoch)\n"},
)
wrong("the data set keeps the loader", "`dataset` has attributes", {TELL: TELL + "        dataset.loader = loader\n"})
wrong("workers are left behind", "leaves the number of threads other", {
    "def train_every_epoch": "kept = []\n\n\ndef train_every_epoch",
    "drop_last=False))": "drop_last=False), num_workers=1, persistent_workers=True)\n    kept.append(loader)",
})  # fmt: skip
wrong("a file", "writes a file", {TELL: TELL + "        open('epoch', 'w').close()\n"})
wrong("a group in each call", "leaves the process groups other", {SAMPLER: SAMPLER + "    dist.new_group()\n"})
wrong("the working folder", "leaves the working folder other", {SAMPLER: SAMPLER + "    os.chdir('/')\n"})
wrong("all iterators are made before the first epoch", "before its order is drawn", {
    TELL: "", STEP: STEP + "\n", "        for batch in loader:": "        for batch in ahead[epoch]:",
    "    for epoch in range(epochs):\n": "    ahead = []\n    for epoch in range(epochs):\n" + TELL
    + "        ahead.append(iter(loader))\n    for epoch in range(epochs):\n",
})  # fmt: skip


wrong(
    "a last batch of one is skipped",
    "a part of the samples is left out",
    {STEP: "            if len(batch) > 1:\n                step(epoch, batch)"},
)
