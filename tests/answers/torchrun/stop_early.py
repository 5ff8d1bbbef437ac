"""Exercise 3 of the lab on torchrun: all ranks stop after the same epoch. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

SUMS = "        sums = torch.tensor(validate())\n        dist.all_reduce(sums)\n        total, count = sums.tolist()\n"
LOOP, IF = "    for epoch in range(most):\n        train_epoch()\n" + SUMS, "if total / count < good"
right("rank 0 decides, for all samples", {
    SUMS: "        pair = torch.tensor(validate(), dtype=torch.float64)\n        dist.reduce(pair, dst=0)\n"
          "        stop = torch.tensor([bool(pair[0] / pair[1] < good)])\n        dist.broadcast(stop, src=0)\n",
    IF: "if stop",
})  # fmt: skip
right("while, and a gather", {
    LOOP: "    epoch = -1\n    while epoch + 1 < most:\n        epoch += 1\n        train_epoch()\n"
          "        everyone = torch.empty(dist.get_world_size(), 2)\n"
          "        dist.all_gather_into_tensor(everyone.flatten(), torch.tensor(validate()))\n"
          "        total, count = everyone.sum(dim=0)\n",
})  # fmt: skip
right("two reductions in the background", {
    SUMS: "        total, count = map(torch.tensor, validate())\n"
          "        works = [dist.all_reduce(one, async_op=True) for one in (total, count)]\n"
          "        for work in works:\n            work.wait()\n",
    IF: "if total < good * count",
})  # fmt: skip
right("float64, and a tensor comes back", {
    "torch.tensor(validate())": "torch.tensor(validate(), dtype=torch.float64)",
    "return epoch + 1": "return torch.tensor(epoch + 1)",
})  # fmt: skip
right("numpy, whose whole number comes back", {
    LOOP: "    import numpy as np\n\n    for epoch in np.arange(most):\n        train_epoch()\n"
          "        sums = torch.from_numpy(np.array(validate(), dtype=np.float64))\n        dist.all_reduce(sums)\n"
          "        total, count = sums\n",
})  # fmt: skip


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


wrong("as given", "The ranks do not stop after the same epoch", {SUMS: "        total, count = validate()\n"})
wrong("without samples it is left out", "The ranks do not stop after the same epoch", {
    SUMS: "        found = validate()\n        sums = torch.tensor(found)\n        if found[1]:\n"
          "            dist.all_reduce(sums)\n        total, count = (sums + 1e-9).tolist()\n"
})  # fmt: skip
wrong("barriers", "more than 2 collectives in an epoch", {IF: "dist.barrier()\n        dist.barrier()\n        " + IF})
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
