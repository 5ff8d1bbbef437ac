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


wrong("as given", "The ranks do not stop after the same epoch", {SUMS: "        total, count = validate()\n"})
wrong("without samples it is left out", "The ranks do not stop after the same epoch", {
    SUMS: "        found = validate()\n        sums = torch.tensor(found)\n        if found[1]:\n"
          "            dist.all_reduce(sums)\n        total, count = (sums + 1e-9).tolist()\n"
})  # fmt: skip
wrong("barriers", "there are too many collectives", {IF: "dist.barrier()\n        dist.barrier()\n        " + IF})
wrong(
    "validates first",
    "before an epoch was trained",
    {"        train_epoch()\n" + SUMS: SUMS + "        train_epoch()\n"},
)
wrong("not waited for", "never waits for", {"dist.all_reduce(sums)": "dist.all_reduce(sums, async_op=True)"})
