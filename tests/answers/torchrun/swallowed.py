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
right("else, the count first, a work, and the batches by number", {
    FOR: "    for number in range(len(batches)):\n        batch = batches[number]\n",
    TRY + CAUGHT + REDUCE + UPDATE:
        "        try:\n            mine = gradient(batch)\n        except ValueError:\n"
        "            table = torch.zeros(features + 1)\n        else:\n            table = torch.cat((torch.ones(1), mine))\n"
        "        work = dist.all_reduce(table, op=dist.ReduceOp.SUM, async_op=True)\n        work.wait()\n"
        "        count, *_ = table.tolist()\n        if count:\n            update(table[1:] * (1 / count))",
})  # fmt: skip
right("takes part before a mistake comes out", {
    FOR: FOR + "        mistake = None\n",
    CAUGHT: CAUGHT + "        except Exception as error:\n            mistake = error\n",
    REDUCE: REDUCE + "        if mistake is not None:\n            raise mistake\n",
})  # fmt: skip


@right("objects; a mistake is told to all ranks, and raised on each")
def told_to_all():
    def train_epoch(batches, gradient, features, update):
        for batch in batches:
            found = None
            try:
                found = gradient(batch).tolist()
            except ValueError:
                pass
            except Exception as error:
                found = error
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, found)
            if errors := [one for one in everyone if isinstance(one, Exception)]:
                raise errors[0]
            good = torch.tensor([one for one in everyone if one is not None])
            if len(good):
                update(good.mean(dim=0))

    return (train_epoch,)


@right("a generator")
def a_generator():
    def train_epoch(batches, gradient, features, update):
        def tables():
            for batch in batches:
                try:
                    yield torch.cat([gradient(batch), torch.ones(1)])
                except ValueError:
                    yield torch.zeros(features + 1)

        for table in tables():
            dist.all_reduce(table)
            if table[-1]:
                update(table[:-1].div(table[-1]))

    return (train_epoch,)


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
wrong("a bare except", "a KeyError of gradient is taken for a broken batch", {"except ValueError": "except"})
wrong(
    "asked twice", "not called once for each batch", {"        try:\n": "        try:\n            gradient(batch)\n"}
)
wrong("three collectives", "more than 2 collectives a step", {REDUCE: "        dist.barrier()\n" * 2 + REDUCE})
wrong("not waited for", "never waits for", {REDUCE: REDUCE.replace("count)", "count, async_op=True)")})
wrong("used up", "changes `batches`", {FOR: "    while batches:\n        batch = batches.pop(0)\n"})
wrong("stops at a broken batch", "still takes part", {"            pass  # zeros take part": "            break"})
