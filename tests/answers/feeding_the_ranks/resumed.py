"""Exercise 4 of the lab on feeding the ranks: iterators that are made early. What is not here is in the official solution."""

import threading

from known_answers import right, wrong
from torch.utils.data import DataLoader, DistributedSampler

FIRST = "    sampler.set_epoch(first)\n"
LOOP, NEXT = "    for epoch in range(first, epochs):\n", "        sampler.set_epoch(epoch + 1)\n"
EARLY = "        batches = iter(loader)  # its workers start while we evaluate\n"
EVALUATE = "        evaluate(epoch)"
right("persistent workers", {"num_workers=1)": "num_workers=1, persistent_workers=True)"})


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


wrong(
    "begins anew",
    "evaluate(epoch) is called once after each epoch",
    {FIRST: "    sampler.set_epoch(0)\n", "range(first, epochs)": "range(epochs)"},
)
wrong("evaluates first", "no worker reads for the next epoch while epoch 0", {
    NEXT + EARLY + EVALUATE: EVALUATE + "\n" + NEXT + EARLY
})  # fmt: skip
wrong("all is read before the evaluation", "no worker reads", {EARLY: "        batches = list(loader)\n"})
wrong("without workers", "no worker reads for the next epoch while epoch 0", {", num_workers=1)": ")"})
wrong("evaluates too early", "is called once after each epoch", {EVALUATE: "", LOOP: LOOP + EVALUATE + "\n"})
