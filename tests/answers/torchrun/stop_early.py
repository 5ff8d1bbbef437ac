"""Exercise 2 of the lab on torchrun: all ranks stop after the same epoch. What is not here is in the official solution."""

import itertools
import math

import numpy as np
import torch
import torch.distributed as dist
from known_answers import right, wrong


@right("rank 0 decides, for all samples")
def on_rank_0():
    def train_until(most, good, train_epoch, validate):
        for epoch in range(most):
            train_epoch()
            pair = torch.tensor(validate(), dtype=torch.float64)
            dist.reduce(pair, dst=0)
            stop = torch.tensor([bool(pair[0] / pair[1] < good)])
            dist.broadcast(stop, src=0)
            if stop:
                return epoch + 1
        return most

    return (train_until,)


@right("while, and a gather")
def with_while():
    def train_until(most, good, train_epoch, validate):
        epochs, loss = 0, math.inf
        while epochs < most and not loss < good:
            train_epoch()
            epochs += 1
            everyone = torch.empty(dist.get_world_size(), 2)
            dist.all_gather_into_tensor(everyone.flatten(), torch.tensor(validate()))
            total, count = everyone.sum(dim=0)
            loss = total / count
        return epochs

    return (train_until,)


@right("two reductions, and break")
def two_reductions():
    def train_until(most, good, train_epoch, validate):
        for epoch in itertools.count(1):
            train_epoch()
            loss, number = map(torch.tensor, validate())
            works = [dist.all_reduce(one, async_op=True) for one in (loss, number)]
            for work in works:
                work.wait()
            if loss < good * number or epoch == most:
                break
        return epoch

    return (train_until,)


right("float64, and a tensor comes back", {
    "torch.tensor(validate())": "torch.tensor(validate(), dtype=torch.float64)",
    "return epoch + 1": "return torch.tensor(epoch + 1)",
})  # fmt: skip


@right("numpy, whose whole number comes back")
def with_numpy():
    def train_until(most, good, train_epoch, validate):
        for epoch in np.arange(1, most + 1):
            train_epoch()
            sums = torch.from_numpy(np.array(validate(), dtype=np.float64))
            dist.all_reduce(sums)
            if sums[0] / sums[1] < good:
                return epoch
        return most

    return (train_until,)


@right("recursion")
def recursion():
    def train_until(most, good, train_epoch, validate):
        if most < 1:
            return 0
        train_epoch()
        sums = torch.tensor(validate(), dtype=torch.float64)
        dist.all_reduce(sums)
        enough = sums[0].div(sums[1]).lt(good)
        return 1 if enough else 1 + train_until(most - 1, good, train_epoch, validate)

    return (train_until,)


@right("a generator")
def a_generator():
    def train_until(most, good, train_epoch, validate):
        def means():
            for epochs in range(1, most + 1):
                train_epoch()
                parts = [torch.empty(2, dtype=torch.float64) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, torch.tensor(validate(), dtype=torch.float64))
                total, count = sum(parts).tolist()
                yield epochs, total / count

        return next((epochs for epochs, mean in means() if mean < good), most)

    return (train_until,)


SUMS = "        sums = torch.tensor(validate())\n        dist.all_reduce(sums)\n        total, count = sums.tolist()\n"
DIFFERENT = "The ranks do not stop after the same epoch"
wrong("as given", DIFFERENT, {SUMS: "        total, count = validate()\n"})
wrong("without samples it is left out", DIFFERENT, {
    SUMS: "        found = validate()\n        sums = torch.tensor(found)\n        if found[1]:\n"
    "            dist.all_reduce(sums)\n        total, count = (sums + 1e-9).tolist()\n"
})  # fmt: skip
wrong("many collectives", "more than 2 collectives in an epoch", {
    SUMS: SUMS.replace("        total", "        dist.barrier()\n        dist.barrier()\n        total")
})  # fmt: skip
wrong("objects", "is given more bytes than a decision needs", {
    SUMS: "        pairs = [None] * dist.get_world_size()\n        dist.all_gather_object(pairs, validate())\n"
    "        total, count = map(sum, zip(*pairs))\n"
})  # fmt: skip
wrong("validates twice", "not called in turn", {SUMS: SUMS + "        validate()\n"})
wrong(
    "validates first",
    "before an epoch was trained",
    {"        train_epoch()\n" + SUMS: SUMS + "        train_epoch()\n"},
)
wrong("not waited for", "never waits for", {"dist.all_reduce(sums)": "dist.all_reduce(sums, async_op=True)"})
