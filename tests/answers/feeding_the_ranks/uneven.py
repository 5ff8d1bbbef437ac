"""Exercise 6 of the lab on feeding the ranks: loaders of different length. What is not here is in the official solution."""

import itertools

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.nn import functional

BATCHES, COUNT = "    batches = iter(batches)\n", "        count = torch.tensor(len(y))\n"
ASK = "        dist.all_reduce(count)\n"
ZEROS = "            if parameter.grad is None:\n                parameter.grad = torch.zeros_like(parameter)\n"
SUM = "            dist.all_reduce(parameter.grad)\n"


@right("gradients and the number of samples travel together")
def together():
    def train_uneven(model, optimizer, batches):
        parameters = list(model.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        for steps in itertools.count():
            message = torch.zeros(sum(sizes) + 1, dtype=parameters[0].dtype)
            batch = next(batches, None)
            if batch is not None:
                x, y = batch
                loss = functional.cross_entropy(model(x), y, reduction="sum")
                gradients = torch.autograd.grad(loss, parameters)
                message = torch.cat([*(gradient.reshape(-1) for gradient in gradients), message.new_tensor([len(y)])])
            dist.all_reduce(message)
            *flat, count = message.split([*sizes, 1])
            if count.item() == 0:
                return steps
            for parameter, gradient in zip(parameters, flat, strict=True):
                parameter.grad = gradient.reshape(parameter.shape) / count
            optimizer.step()

    return (train_uneven,)


@right("one batch ahead, without waiting between the all-reduces")
def one_ahead():
    def train_uneven(model, optimizer, batches):
        batches = iter(batches)
        coming, steps = next(batches, None), 0
        while True:
            now, coming = coming, next(batches, None)
            facts = torch.tensor([0 if now is None else len(now[1])])
            dist.all_reduce(facts)
            if not facts.item():
                return steps
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            if now is not None:
                functional.cross_entropy(model(now[0]), now[1], reduction="sum").div(facts.item()).backward()
            for work in [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]:
                work.wait()
            optimizer.step()
            steps += 1

    return (train_uneven,)


@right("the mean by the collective, a generator of steps")
def by_the_collective():
    def train_uneven(model, optimizer, batches):
        ranks = dist.get_world_size()

        def all_steps():
            for x, y in itertools.chain(batches, itertools.repeat((None, None))):
                share = torch.zeros(2, dtype=torch.float64)
                share[0], share[1] = 0 if y is None else len(y), y is not None
                dist.all_reduce(share)
                if not share[1]:
                    return
                yield x, y, share[0].item()

        done = 0
        for x, y, samples in all_steps():
            loss = sum((p * 0).sum() for p in model.parameters())
            if x is not None:
                loss = functional.cross_entropy(model(x), y) * (ranks * len(y) / samples)
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
            optimizer.step()
            done += 1
        return done

    return (train_uneven,)


@wrong("a plain loop", "A rank without data still takes part")
def plain_loop():
    def train_uneven(model, optimizer, batches):
        steps = 0
        for x, y in batches:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            optimizer.step()
            steps += 1
        return steps

    return (train_uneven,)


wrong("all batches first", "before it takes its steps", {BATCHES: "    batches = iter(list(batches))\n"})
wrong("the number of batches", "raised TypeError", {BATCHES: BATCHES + "    most = len(batches)\n"})
wrong("only where there is a gradient", "parameters have no gradient", {
    ZEROS + SUM: "            if parameter.grad is not None:\n    " + SUM
})  # fmt: skip
wrong("rank 0 is asked", "more collectives than needed", {
    ASK: "        more = count.clone()\n        dist.broadcast(more, 0)\n" + ASK,
    "if count == 0:": "if more == 0:",
})  # fmt: skip
