"""Exercise 5 of the lab on torchrun: broken batches. What is not here is in the official solution."""

import contextlib

import torch
import torch.distributed as dist
from known_answers import right, wrong


@right("nan marks broken batches")
def nan():
    def train_epoch(batches, gradient, features, update):
        for batch in batches:
            try:
                mine = gradient(batch)
            except ValueError:
                mine = torch.full((features,), torch.nan)
            everyone = torch.empty(dist.get_world_size(), features)
            dist.all_gather_into_tensor(everyone.flatten(), mine)
            everyone = everyone[~everyone.isnan().any(dim=1)]
            if len(everyone):
                update(everyone.mean(dim=0))

    return (train_epoch,)


@right("two collectives")
def two_collectives():
    def train_epoch(batches, gradient, features, update):
        for batch in iter(batches):
            try:
                mine, good = gradient(batch), 1.0
            except ValueError:
                mine, good = torch.zeros(features), 0.0
            count = torch.tensor(good)
            dist.all_reduce(count)
            if not count:
                continue
            dist.all_reduce(mine)
            update(mine.div_(count))

    return (train_epoch,)


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


@right("else, weights first, no in-place operations")
def with_else():
    def train_epoch(batches, gradient, features, update):
        for index in range(len(batches)):
            try:
                mine = gradient(batches[index])
            except ValueError:
                table = torch.zeros(features + 1)
            else:
                table = torch.cat((torch.ones(1), mine))
            work = dist.all_reduce(table, op=dist.ReduceOp.SUM, async_op=True)
            work.wait()
            count, *_ = table.tolist()
            if count:
                update(table[1:] * (1 / count))

    return (train_epoch,)


@right("a generator, of which Python makes a RuntimeError where a StopIteration comes out")
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


@right("takes part before a mistake comes out")
def takes_part():
    def train_epoch(batches, gradient, features, update):
        for batch in batches:
            table, mistake = torch.zeros(features + 1), None
            try:
                torch.cat([gradient(batch), torch.ones(1)], out=table)
            except ValueError:
                pass
            except Exception as error:
                mistake = error
            dist.all_reduce(table)
            if mistake is not None:
                raise mistake
            if table[-1]:
                update(table[:-1] / table[-1])

    return (train_epoch,)


REDUCE = "        dist.all_reduce(with_count)\n"
wrong("alone", "this rank's gradient alone", {REDUCE: ""})
wrong("a bare except", "a KeyError of gradient is taken for a broken batch", {"except ValueError": "except"})
wrong(
    "asked twice", "not called once for each batch", {"        try:\n": "        try:\n            gradient(batch)\n"}
)
wrong("three collectives a step", "more than 2 collectives a step", {
    REDUCE: "        dist.all_reduce(torch.zeros(1))\n        dist.all_reduce(torch.zeros(1))\n" + REDUCE
})  # fmt: skip
wrong("not waited for", "never waits for", {REDUCE: REDUCE.replace("count)", "count, async_op=True)")})
wrong("the batches are used up", "changes `batches`", {
    "    for batch in batches:": "    while batches:\n        batch = batches.pop(0)"
})  # fmt: skip
wrong("stops at a broken batch", "still takes part", {"            pass  # zeros take part": "            break"})
