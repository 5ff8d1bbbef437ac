import math


import torch


import torch.distributed as dist


from torch.nn import functional


from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info


from utils import launch


from checks.labs import feeding_the_ranks as check


from checks.labs.feeding_the_ranks.simulated_loader import Machine


class TrainingSampler:
    def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
        ### BEGIN SOLUTION
        self.length, self.world_size, self.rank = len(dataset), world_size, rank
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0
        ### END SOLUTION

    def set_epoch(self, epoch):
        ### BEGIN SOLUTION
        self.epoch = epoch
        ### END SOLUTION

    def __len__(self):
        ### BEGIN SOLUTION
        if self.drop_last:
            return self.length // self.world_size
        return math.ceil(self.length / self.world_size)
        ### END SOLUTION

    def __iter__(self):
        ### BEGIN SOLUTION
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        total = len(self) * self.world_size
        repeated = order * math.ceil(total / self.length)
        return iter(repeated[self.rank : total : self.world_size])


class EvaluationSampler:
    def __init__(self, dataset, world_size, rank):
        ### BEGIN SOLUTION
        self.indices = range(rank, len(dataset), world_size)
        ### END SOLUTION

    def __len__(self):
        ### BEGIN SOLUTION
        return len(self.indices)
        ### END SOLUTION

    def __iter__(self):
        ### BEGIN SOLUTION
        return iter(self.indices)


def accuracy(correct, seen):
    ### BEGIN SOLUTION
    counts = torch.tensor([correct, seen])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


class Samples(Dataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 15

    def __getitem__(self, index):
        return index, self.epoch


def watch(train, *numbers):
    def on_a_rank():
        torch.multiprocessing.set_start_method("fork", force=True)  # workers start the same way on all systems
        seen = {}
        others = [lambda epoch: None] * (len(numbers) - 1)  # for loops that evaluate
        train(Samples(), *numbers, lambda epoch, batch: seen.setdefault(epoch, []).append(batch), *others)
        return seen

    for epoch, batches in launch(on_a_rank, ranks=2)[0].items():
        samples, believed = (torch.cat(parts).tolist() for parts in zip(*batches, strict=True))
        print(f"epoch {epoch}: samples {samples}, epochs of the data set: {sorted(set(believed))}")


def broken_every_epoch(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))
    for epoch in range(epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)


def train_every_epoch(dataset, epochs, step):
    ### BEGIN SOLUTION
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size=4, drop_last=False))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)


def broken_resumed(dataset, first, epochs, step, evaluate):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    batches = iter(loader)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)
        for batch in batches:
            step(epoch, batch)
        batches = iter(loader)  # its workers start while we evaluate
        evaluate(epoch)


def train_resumed(dataset, first, epochs, step, evaluate):
    ### BEGIN SOLUTION
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


def broken_augmented(dataset, epochs, step):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        dataset.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)


def train_augmented(dataset, epochs, step):
    ### BEGIN SOLUTION
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        dataset.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)


class WithEpoch(Dataset):
    def __init__(self, dataset):
        self.dataset = dataset
        self.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        self.dataset.set_epoch(self.epoch.item())
        return self.dataset[index]


def with_persistent_workers(dataset, epochs, step):
    shared = WithEpoch(dataset)
    sampler = DistributedSampler(shared)
    loader = DataLoader(shared, batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        shared.epoch.fill_(epoch)
        for batch in loader:
            step(epoch, batch)


def train_uneven(model, optimizer, batches):
    ### BEGIN SOLUTION
    parameters = list(model.parameters())
    batches = iter(batches)
    steps = 0
    while True:
        x, y = next(batches, (None, ()))
        count = torch.tensor(len(y))
        dist.all_reduce(count)
        if count == 0:
            return steps
        optimizer.zero_grad(set_to_none=False)
        if len(y):
            (functional.cross_entropy(model(x), y) * (len(y) / count)).backward()
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        optimizer.step()
        steps += 1


def with_join(divide_by_initial_world_size):
    from torch.nn.parallel import DistributedDataParallel

    batches = [[torch.ones(4, 1)], [torch.full((1, 1), 6.0)], []][dist.get_rank()]
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with model.join(divide_by_initial_world_size=divide_by_initial_world_size):
        for x in batches:
            model(x).mean().backward()
            optimizer.step()
    return round(-model.module.weight.item(), 2)


def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
    ### BEGIN SOLUTION
    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))
    seconds = []
    for workers in range(most + 1):
        rounds = max(workers, 1)
        measured = measure(workers, 24 * rounds)[4 * rounds :]
        seconds.append(sum(measured) / len(measured))
    return min(workers for workers in range(most + 1) if seconds[workers] <= 1.05 * min(seconds))


from utils import draw


from checks.labs.feeding_the_ranks.simulated_loader import MACHINES


import time


import warnings


class Naps(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.001)
        return index


def measure_here(workers, batches):
    fork = "fork" if workers else None
    loader = DataLoader(Naps(), batch_size=8, num_workers=workers, multiprocessing_context=fork)
    seconds, last = [], time.perf_counter()
    for _ in zip(range(batches), loader, strict=False):
        time.sleep(0.002)
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    means[workers] = sum(seconds[4 * workers :]) / len(seconds[4 * workers :])
    return seconds


class RankStream(IterableDataset):
    def __init__(self, source, world_size, rank, drop_last=False):
        ### BEGIN SOLUTION
        self.source, self.world_size, self.rank, self.drop_last = source, world_size, rank, drop_last
        ### END SOLUTION

    def __iter__(self):
        ### BEGIN SOLUTION
        length = len(self.source)
        if self.drop_last:
            length -= length % self.world_size
        mine = range(self.rank, length, self.world_size)
        worker = get_worker_info()
        if worker is not None:
            mine = mine[worker.id :: worker.num_workers]
        for index in mine:
            yield self.source[index]
