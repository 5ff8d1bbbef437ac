"""Exercise 4 of the lab on feeding the ranks: iterators that are made early, and resuming."""

# ruff: noqa: F401 (modules that changed answers use)
import multiprocessing
import threading
import time

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.utils.data import DataLoader, DistributedSampler, Subset


def train_resumed(dataset, first, epochs, step, evaluate):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    sampler.set_epoch(first)
    batches = iter(loader)
    for epoch in range(first, epochs):
        for batch in batches:
            step(epoch, batch)
        sampler.set_epoch(epoch + 1)
        batches = iter(loader)  # its workers start while we evaluate
        evaluate(epoch)


EQUAL = {
    "19: train_resumed with `dist.barrier()`": "ranks may wait for each other",
    "21: 1 → 2": "two workers are workers, too",
    "23: `iter(loader)` → `loader`": "before the first epoch there is nothing to do meanwhile",
}
SAMPLER = "    sampler = DistributedSampler(dataset)\n"
FIRST = "    sampler.set_epoch(first)\n"
START = "    batches = iter(loader)\n"
EPOCHS = "    for epoch in range(first, epochs):\n"
STEPS = "        for batch in batches:\n            step(epoch, batch)\n"
NEXT = "        sampler.set_epoch(epoch + 1)\n"
EARLY = "        batches = iter(loader)  # its workers start while we evaluate\n"
EVALUATE = "        evaluate(epoch)"


# --- right, and written differently


@right("a function that starts an epoch, two workers")
def starts():
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

    return (train_resumed,)


right("persistent workers", {"num_workers=1": "num_workers=1, persistent_workers=True"})


@right("a generator that is one epoch ahead, an order of one's own, a small prefetch")
def generator():
    def train_resumed(dataset, first, epochs, step, evaluate):
        rank, ranks, length = dist.get_rank(), dist.get_world_size(), len(dataset)
        share = -(-length // ranks)

        def started():
            for epoch in range(first, epochs):
                order = torch.randperm(length, generator=torch.Generator().manual_seed(7 * epoch)).repeat(ranks)
                mine = Subset(dataset, order[rank * share : (rank + 1) * share].tolist())
                yield iter(DataLoader(mine, 4, num_workers=1, prefetch_factor=1))

        coming = started()
        batches = next(coming)
        for epoch in range(first, epochs):
            while (batch := next(batches, None)) is not None:
                step(epoch, batch)
            batches = next(coming, None)
            evaluate(epoch)

    return (train_resumed,)


@right("a thread makes the next iterator")
def thread():
    def train_resumed(dataset, first, epochs, step, evaluate):
        sampler = DistributedSampler(dataset, seed=3)
        loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
        made = {}

        def make(epoch):
            sampler.set_epoch(epoch)
            made[epoch] = iter(loader)

        make(first)
        for epoch in range(first, epochs):
            for batch in made.pop(epoch):
                step(epoch, batch)
            worker = threading.Thread(target=make, args=(epoch + 1,))
            worker.start()
            evaluate(epoch)
            worker.join()

    return (train_resumed,)


# --- wrong

wrong("as given", "the later ones are one epoch late", {
    FIRST: "", EPOCHS: EPOCHS + "        sampler.set_epoch(epoch)\n", NEXT: ""
})  # fmt: skip
wrong("forgotten", "has to hear of each epoch", {FIRST: "", NEXT: ""})
wrong("only the first", "the later ones are one epoch late", {
    EPOCHS: EPOCHS + "        sampler.set_epoch(epoch)\n", NEXT: ""
})  # fmt: skip
wrong("persistent workers, as given", "the later ones are one epoch late", {
    "num_workers=1": "num_workers=1, persistent_workers=True",
    FIRST: "", EPOCHS: EPOCHS + "        sampler.set_epoch(epoch)\n", NEXT: ""
})  # fmt: skip
wrong("too small", "the later ones are one epoch late", {NEXT: "        sampler.set_epoch(epoch)\n"})
wrong("the first iterator after resuming", "gives epoch 2 the order of epoch 0", {FIRST: ""})
wrong("counted from the resume", "gives epoch 2 the order of epoch 0", {
    FIRST: "    sampler.set_epoch(0)\n", NEXT: "        sampler.set_epoch(epoch - first + 1)\n"
})  # fmt: skip
wrong(
    "the seed of the moment", "an order that no epoch of the whole run has", {"(dataset)\n": "(dataset, seed=first)\n"}
)
wrong("the seed of the rank", "the ranks shuffle differently", {"(dataset)\n": "(dataset, seed=dist.get_rank())\n"})
wrong(
    "begins anew",
    "does not train these epochs, in this order",
    {FIRST: "    sampler.set_epoch(0)\n", "range(first, epochs)": "range(epochs)"},
)
wrong("never evaluates", "evaluate(epoch) is called once after each epoch", {EVALUATE: ""})
wrong("the last one is not evaluated", "evaluate(epoch) is called once after each epoch", {
    EVALUATE: "        if epoch + 1 < epochs:\n            evaluate(epoch)"
})  # fmt: skip
wrong(
    "evaluates too early",
    "evaluate comes after the last step of its epoch",
    {STEPS: EVALUATE + "\n" + STEPS, EARLY + EVALUATE: EARLY},
)
wrong("evaluates first", "no worker reads for the next epoch while epoch 0 is evaluated", {
    NEXT + EARLY + EVALUATE: EVALUATE + "\n" + NEXT + EARLY
})  # fmt: skip
wrong("late iterators", "no worker reads for the next epoch while epoch 0 is evaluated", {
    FIRST + START: "", STEPS: STEPS.replace("in batches", "in loader"), NEXT + EARLY: "",
    EPOCHS: EPOCHS + "        sampler.set_epoch(epoch)\n",
})  # fmt: skip
wrong(
    "all is read before the evaluation",
    "no worker reads for the next epoch",
    {EARLY: "        batches = list(loader)\n"},
)
wrong("without workers", "no worker reads for the next epoch while epoch 0 is evaluated", {", num_workers=1": ""})
wrong("processes that do nothing", "no worker reads for the next epoch", {
    ", num_workers=1": "",
    EVALUATE: "        idle = multiprocessing.Process(target=time.sleep, args=(0.2,))\n        idle.start()\n" + EVALUATE + "\n        idle.join()",
})  # fmt: skip
wrong(
    "after three epochs anew",
    "epochs 0 and 3 have the same order",
    {FIRST: "    sampler.set_epoch(first % 2)\n", NEXT: "        sampler.set_epoch((epoch + 1) % 3)\n"},
)
wrong(
    "the global generator is seeded",
    "the seed of torch's random numbers other",
    {FIRST: FIRST + "    torch.manual_seed(first)\n"},
)
wrong("the data set is marked", "`dataset` has attributes", {FIRST: FIRST + "    dataset.sampler = sampler\n"})
wrong("workers are left behind", "leaves the number of threads other", {
    "def train_resumed": "kept = []\n\n\ndef train_resumed", EVALUATE: "        kept.append(batches)\n" + EVALUATE
})  # fmt: skip
wrong("a thread that nobody waits for", "and is over before the loop goes on", {
    EVALUATE: "        threading.Thread(target=evaluate, args=(epoch,)).start()\n"
})  # fmt: skip
right("a thread that is waited for", {
    EVALUATE: "        thread = threading.Thread(target=evaluate, args=(epoch,))\n        thread.start()\n        thread.join()\n"
})  # fmt: skip


wrong(
    "resumed with the last epoch, in the order of the first",
    "a run that resumes with epoch 5 gives epoch 5 the order of epoch 0",
    {FIRST: "    sampler.set_epoch(first if first < epochs - 1 else 0)\n"},
)
