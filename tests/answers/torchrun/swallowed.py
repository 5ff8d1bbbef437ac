"""Exercise 6 of the lab on torchrun: broken batches. What is not here is in the official solution."""

import contextlib

import torch
import torch.distributed as dist
from known_answers import right, wrong

TRY = "        try:\n            with_count[:-1] = gradient(batch)\n            with_count[-1] = 1\n"
CAUGHT = "        except ValueError:\n            pass  # zeros take part\n"
REDUCE, FOR = "        dist.all_reduce(with_count)\n", "    for batch in batches:\n"
UPDATE = "        if with_count[-1] > 0:\n            update(with_count[:-1] / with_count[-1])"
right("nan marks broken batches", {
    TRY + CAUGHT + REDUCE + UPDATE:
        "        try:\n            mine = gradient(batch)\n        except ValueError:\n"
        "            mine = torch.full((features,), torch.nan)\n"
        "        everyone = torch.empty(dist.get_world_size(), features)\n"
        "        dist.all_gather_into_tensor(everyone.flatten(), mine)\n"
        "        everyone = everyone[~everyone.isnan().any(dim=1)]\n"
        "        if len(everyone):\n            update(everyone.mean(dim=0))"
})  # fmt: skip
right("two collectives", {
    REDUCE: "        mine, count = with_count[:-1].clone(), with_count[-1].clone()\n        dist.all_reduce(count)\n"
            "        if not count:\n            continue\n        dist.all_reduce(mine)\n",
    UPDATE: "        update(mine.div_(count))",
})  # fmt: skip


@right("suppressed, and two works at a time")
def suppressed():
    def train_epoch(batches, gradient, features, update):
        for batch in batches:
            mine = None
            with contextlib.suppress(ValueError):
                mine = gradient(batch)
            count = torch.tensor(0.0 if mine is None else 1.0)
            total = torch.zeros(features) if mine is None else mine.clone()
            for work in [dist.all_reduce(one, async_op=True) for one in (count, total)]:
                work.wait()
            if count.item():
                update(total / count)

    return (train_epoch,)


wrong("alone", "this rank's gradient alone", {REDUCE: ""})
wrong("asked twice", "the calls: not what", {"        try:\n": "        try:\n            gradient(batch)\n"})
wrong("three collectives", "there are too many collectives", {REDUCE: "        dist.barrier()\n" * 2 + REDUCE})
wrong("not waited for", "never waits for", {REDUCE: REDUCE.replace("count)", "count, async_op=True)")})
wrong("stops at a broken batch", "still takes part", {"            pass  # zeros take part": "            break"})
