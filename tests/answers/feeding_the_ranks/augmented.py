"""Exercise 5 of the lab on feeding the ranks: the data set's epoch reaches its workers."""

# ruff: noqa: F401 (modules that changed answers use)
import random
from multiprocessing import Manager, Value

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Subset, get_worker_info


def train_augmented(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        dataset.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)


EQUAL = {
    "16: train_augmented with `dist.barrier()`": "ranks may wait for each other",
    "18: 1 → 2": "two workers are at least one",
}
SAMPLER = "    sampler = DistributedSampler(dataset)\n"
LOADER = "    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)\n"
TELL_SAMPLER = "        sampler.set_epoch(epoch)\n"
TELL_DATA = "        dataset.set_epoch(epoch)\n"
STEPS = "        for batch in loader:\n            step(epoch, batch)"
STAY = {"num_workers=1": "num_workers=1, persistent_workers=True"}


# --- right, and written differently

right("a new loader in each epoch", {LOADER: "", TELL_DATA: TELL_DATA + LOADER.replace("    ", "        ", 1)})


@right("shared memory, persistent workers")
def shared_memory():
    class WithEpoch(Dataset):
        def __init__(self, dataset):
            self.dataset = dataset
            self.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

        def __len__(self):
            return len(self.dataset)

        def __getitem__(self, index):
            self.dataset.set_epoch(self.epoch.item())
            return self.dataset[index]

    def train_augmented(dataset, epochs, step):
        shared = WithEpoch(dataset)
        sampler = DistributedSampler(shared)
        loader = DataLoader(shared, batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            shared.epoch.fill_(epoch)
            for batch in loader:
                step(epoch, batch)

    return (train_augmented,)


@right("the epoch travels with the indices")
def with_the_indices():
    class Told(Dataset):
        def __init__(self, dataset):
            self.dataset = dataset

        def __len__(self):
            return len(self.dataset)

        def __getitem__(self, asked):
            epoch, index = asked
            self.dataset.set_epoch(epoch)
            return self.dataset[index]

    def train_augmented(dataset, epochs, step):
        sampler = DistributedSampler(dataset, shuffle=True)

        class Asked:
            epoch = 0

            def __iter__(self):
                sampler.set_epoch(self.epoch)
                return ((self.epoch, index) for index in sampler)

            def __len__(self):
                return len(sampler)

        asked = Asked()
        loader = DataLoader(Told(dataset), 4, sampler=asked, num_workers=2, persistent_workers=True)
        for asked.epoch in range(epochs):
            for batch in loader:
                step(asked.epoch, batch)

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


# --- wrong

wrong("as given", "the workers keep the data set of the first epoch", STAY)
wrong(
    "the data set of the loader",
    "the workers keep the data set of the first epoch",
    STAY | {TELL_DATA: "        loader.dataset.set_epoch(epoch)\n"},
)
wrong("told when workers start", "the workers keep the data set of the first epoch", {
    SAMPLER: SAMPLER + "    now = {'epoch': 0}\n",
    "num_workers=1": "num_workers=1, persistent_workers=True, "
    "worker_init_fn=lambda _: get_worker_info().dataset.set_epoch(now['epoch'])",
    TELL_DATA: "        now['epoch'] = epoch\n",
})  # fmt: skip
wrong("the data set is forgotten", "the data set never hears of an epoch", {TELL_DATA: ""})
wrong("the sampler is forgotten", "has to hear of each epoch", {TELL_SAMPLER: ""})
wrong("a new loader and a new sampler", "has to hear of each epoch", {
    SAMPLER + LOADER: "", TELL_SAMPLER: "", TELL_DATA: TELL_DATA + (SAMPLER + LOADER).replace("    ", "        ")
})  # fmt: skip
wrong("the sampler is lost on the way", "every rank trains on all samples", {
    SAMPLER: "", "sampler=sampler": "shuffle=True", TELL_SAMPLER: ""
})  # fmt: skip
wrong(
    "told after the epoch", "the data set believes in another epoch", {TELL_DATA: "", STEPS: STEPS + "\n" + TELL_DATA}
)
wrong("told after the iterator", "the data set believes in another epoch", {
    TELL_DATA: "        batches = iter(loader)\n" + TELL_DATA, "in loader": "in batches"
})  # fmt: skip
wrong(
    "counted from one",
    "the data set believes in another epoch",
    {"dataset.set_epoch(epoch)": "dataset.set_epoch(epoch + 1)"},
)
wrong("the epoch of the rank", "the data set believes in another epoch", {
    "dataset.set_epoch(epoch)": "dataset.set_epoch(epoch * dist.get_world_size() + dist.get_rank())"
})  # fmt: skip
wrong("without workers", "samples are read by the training process itself", {", num_workers=1": ""})
wrong("some without workers", "samples are read by the training process itself", {
    SAMPLER + LOADER: SAMPLER, TELL_DATA: TELL_DATA + LOADER.replace("    ", "        ", 1).replace("num_workers=1", "num_workers=epoch % 2")
})  # fmt: skip
wrong("batches of another size", "these are not batches of 4", {"batch_size=4": "batch_size=12"})
wrong("four epochs", "have the same order", {"sampler.set_epoch(epoch)": "sampler.set_epoch(epoch % 3)"})
wrong("the last rows are dropped", "left out", {"num_workers=1": "num_workers=1, drop_last=True"})
wrong(
    "the global generator is seeded",
    "the seed of torch's random numbers other",
    {TELL_DATA: TELL_DATA + "        torch.manual_seed(epoch)\n"},
)
wrong(
    "the data set gets another method",
    "`dataset` has attributes",
    {TELL_DATA: TELL_DATA + "        dataset.set_epoch = dataset.set_epoch\n"},
)


@wrong("a wrapper that is copied too", "the workers keep the data set of the first epoch")
def copied_too():
    class WithEpoch(Dataset):
        def __init__(self, dataset):
            self.dataset, self.now = dataset, 0

        def __len__(self):
            return len(self.dataset)

        def __getitem__(self, index):
            self.dataset.set_epoch(self.now)
            return self.dataset[index]

    def train_augmented(dataset, epochs, step):
        wrapped = WithEpoch(dataset)
        sampler = DistributedSampler(wrapped)
        loader = DataLoader(wrapped, batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            wrapped.now = epoch
            for batch in loader:
                step(epoch, batch)

    return (train_augmented,)


@wrong("the workers' process number is faked", "samples are read by the training process itself")
def faked():
    def train_augmented(dataset, epochs, step):
        torch.utils.data._utils.worker._worker_info = object()
        sampler = DistributedSampler(dataset)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            dataset.set_epoch(epoch)
            for batch in BatchSampler(sampler, 4, False):
                step(epoch, torch.tensor([dataset[index] for index in batch]))
        torch.utils.data._utils.worker._worker_info = None

    return (train_augmented,)


class OfMultiprocessing(Dataset):
    """Its epoch is a number that Python's multiprocessing shares: in a file that has no name, or with a server."""

    def __init__(self, dataset, epoch):
        self.dataset, self.epoch = dataset, epoch

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        self.dataset.set_epoch(self.epoch.value)
        return self.dataset[index]


def _train(dataset, number, epochs, step):
    shared = OfMultiprocessing(dataset, number)
    sampler = DistributedSampler(shared)
    loader = DataLoader(shared, batch_size=4, sampler=sampler, num_workers=2, persistent_workers=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        number.value = epoch
        for batch in loader:
            step(epoch, batch)


@right("a Value")
def with_a_value():
    def train_augmented(dataset, epochs, step):
        _train(dataset, Value("q", 0), epochs, step)

    return (train_augmented,)


@right("a Manager's Value")
def with_a_manager():
    def train_augmented(dataset, epochs, step):
        with Manager() as manager:
            _train(dataset, manager.Value("q", 0), epochs, step)

    return (train_augmented,)
