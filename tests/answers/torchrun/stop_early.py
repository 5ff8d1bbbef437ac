"""Exercise 2 of the lab on torchrun: all ranks stop after the same epoch."""

import itertools
import math

import numpy as np
import torch
import torch.distributed as dist
from known_answers import right, wrong


def train_until(most, good, train_epoch, validate):
    for epoch in range(most):
        train_epoch()
        sums = torch.tensor(validate())
        dist.all_reduce(sums)
        total, count = sums.tolist()
        if total / count < good:
            return epoch + 1
    return most


SUMS = "        sums = torch.tensor(validate())\n        dist.all_reduce(sums)\n        total, count = sums.tolist()\n"
MEAN = "        total, count = validate()\n        mean = torch.tensor([total / count if count else 0.0])\n"
DIFFERENT = "the ranks do not stop after the same epoch"
EQUAL = {
    "16: train_until with `dist.barrier()`": "two collectives an epoch are allowed",
    "21: `sums.tolist()` → `sums`": "tensors with one number compare like numbers",
}


# --- right, and written differently


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


# --- wrong

wrong("as given", DIFFERENT, {SUMS: "        total, count = validate()\n"})
wrong("a barrier", DIFFERENT, {SUMS: "        total, count = validate()\n        dist.barrier()\n"})
wrong(
    "never stops",
    "it never stops early",
    {SUMS: "        total, count = validate()\n        good = -1\n", "total / count": "0"},
)
wrong("one is enough", "as soon as the loss of one rank", {
    SUMS: MEAN + "        dist.all_reduce(mean, dist.ReduceOp.MIN)\n", "total / count < good:": "mean < good:"
})  # fmt: skip
wrong("all must be good", "the loss of each single rank is good enough", {
    SUMS: MEAN + "        dist.all_reduce(mean, dist.ReduceOp.MAX)\n", "total / count < good:": "mean < good:"
})  # fmt: skip
wrong("mean of means", "the mean of the ranks' means", {
    SUMS: MEAN + "        dist.all_reduce(mean, dist.ReduceOp.AVG)\n", "total / count < good:": "mean < good:"
})  # fmt: skip
wrong("rank 0 decides", "decides", {
    SUMS: MEAN + "        dist.broadcast(mean, src=0)\n", "total / count < good:": "mean < good:"
})  # fmt: skip
wrong("the last rank decides", "decides", {
    SUMS: MEAN + "        dist.broadcast(mean, src=dist.get_world_size() - 1)\n", "total / count < good:": "mean < good:"
})  # fmt: skip
wrong("a majority decides", "decides", {
    SUMS: MEAN + "        mean = (mean < good).float()\n        dist.all_reduce(mean, dist.ReduceOp.AVG)\n",
    "total / count < good:": "mean > 0.5:",
})  # fmt: skip
wrong("sums are not divided", "decides", {"total / count < good": "total < good"})
wrong("good is enough", "and not only below", {"total / count < good": "total / count <= good"})
wrong("a loss below zero", "decides", {"total / count < good": "abs(total) / count < good"})
wrong("always 0.5", "decides", {"total / count < good": "total / count < 0.5"})
wrong("half precision", "decides", {"torch.tensor(validate())": "torch.tensor(validate(), dtype=torch.bfloat16)"})
wrong("many collectives", "there are more collectives than a decision", {
    SUMS: "        pairs = [torch.tensor(validate()) if n == dist.get_rank() else torch.zeros(2)\n"
    "                 for n in range(dist.get_world_size())]\n"
    "        for n, pair in enumerate(pairs):\n            dist.broadcast(pair, n)\n"
    "        total, count = sum(pairs).tolist()\n"
})  # fmt: skip
wrong("objects", "is given more bytes than a decision", {
    SUMS: "        pairs = [None] * dist.get_world_size()\n        dist.all_gather_object(pairs, validate())\n"
    "        total, count = map(sum, zip(*pairs))\n"
})  # fmt: skip
wrong("one epoch too many", "does not return how many epochs", {"return epoch + 1": "return epoch"})
wrong("nothing comes back", "does not return how many epochs", {"return epoch + 1": "return None"})
wrong("True comes back", "does not return how many epochs", {"return most": "return True"})
wrong("validates twice", "once each, in turn", {
    SUMS: SUMS + "        validate()\n"
})  # fmt: skip
wrong("validates first", "validate() is for after an epoch", {
    "        train_epoch()\n" + SUMS: SUMS + "        train_epoch()\n"
})  # fmt: skip
wrong("the last is not validated", DIFFERENT, {
    "        train_epoch()\n": "        train_epoch()\n        if epoch == most - 1 and dist.get_rank():\n            break\n"
})  # fmt: skip
wrong("not waited for", "never waits for", {"dist.all_reduce(sums)": "dist.all_reduce(sums, async_op=True)"})
wrong("without samples it is left out", DIFFERENT, {
    SUMS: "        found = validate()\n        sums = torch.tensor(found)\n        if found[1]:\n"
    "            dist.all_reduce(sums)\n        total, count = (sums + 1e-9).tolist()\n"
})  # fmt: skip
wrong("the random numbers", "torch's random numbers", {"    return most": "    torch.manual_seed(0)\n    return most"})
wrong("for three ranks", "decides", {
    SUMS: MEAN + "        dist.all_reduce(mean)\n        mean /= 3\n", "total / count < good:": "mean < good:"
})  # fmt: skip
wrong(
    "nan is good",
    "takes nan for a loss that is good enough",
    {"if total / count < good": "if not total / count >= good"},
)
wrong("asks in every second epoch", "it never stops early", {
    "        total, count = sums.tolist()\n": "        if epoch % 2 and epoch < most - 1:\n            continue\n"
    "        total, count = sums.tolist()\n"
})  # fmt: skip
wrong("to three digits", "decides", {"total / count < good": "round(total / count, 3) < good"})


wrong(
    "stops when the loss has jumped",
    "the mean loss over all samples of all ranks decides, and nothing else",
    {
        "    for epoch in range(most):\n": "    last = math.inf\n    for epoch in range(most):\n",
        "        if total / count < good:\n            return epoch + 1\n": (
            "        if total / count < good or total / count > 3 * abs(last):\n            return epoch + 1\n"
            "        last = total / count\n"
        ),
    },
)
wrong(
    "an error of validate is taken for no samples",
    "swallows an error of validate()",
    {
        SUMS: "        try:\n            sums = torch.tensor(validate())\n        except OSError:\n"
        "            sums = torch.zeros(2)\n        dist.all_reduce(sums)\n        total, count = sums.tolist()\n"
    },
)
