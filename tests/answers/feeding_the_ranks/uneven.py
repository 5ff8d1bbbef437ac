"""Exercise 6 of the lab on feeding the ranks: loaders of different length."""

# ruff: noqa: F401 (modules that changed answers use)
import itertools
import time

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.nn import functional


def train_uneven(model, optimizer, batches):
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


BATCHES = "    batches = iter(batches)\n"
COUNT = "        count = torch.tensor(len(y))\n"
ASK = "        dist.all_reduce(count)\n"
END = "        if count == 0:\n            return steps\n"
CLEAR = "        optimizer.zero_grad(set_to_none=False)\n"
LOSS = "            (functional.cross_entropy(model(x), y) * (len(y) / count)).backward()\n"
ZEROS = "            if parameter.grad is None:\n                parameter.grad = torch.zeros_like(parameter)\n"
SUM = "            dist.all_reduce(parameter.grad)\n"
STEP = "        optimizer.step()\n"
EQUAL = {
    "16: train_uneven with `model.requires_grad_(True)`": "no parameter is frozen",
    "16: without `batches = iter(batches)`": "it is an iterator",
    "18: `iter(batches)` → `batches`": "it is an iterator",
    "26: `optimizer.zero_grad(set_to_none=False)` without set_to_none": "None becomes zeros below",
    "26: False → True": "None becomes zeros below",
}


# --- right, and written differently


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


@right("counts are gathered, a try around next, gradients of float64")
def gathered():
    def train_uneven(model, optimizer, batches):
        steps, ranks = 0, dist.get_world_size()
        while True:
            try:
                x, y = next(batches)
                mine = y.numel()
            except StopIteration:
                mine = 0
            counts = torch.empty(ranks, dtype=torch.int32)
            dist.all_gather_into_tensor(counts, torch.tensor([mine], dtype=torch.int32))
            total = counts.sum().item()
            if total == 0:
                break
            optimizer.zero_grad()
            if mine:
                functional.cross_entropy(model(x), y).mul(mine).backward()
            with torch.no_grad():
                for _, parameter in reversed(list(model.named_parameters())):
                    gradient = parameter.new_zeros(parameter.shape) if parameter.grad is None else parameter.grad
                    dist.all_reduce(gradient, op=dist.ReduceOp.SUM, group=dist.group.WORLD)
                    parameter.grad = gradient / total
            optimizer.step()
            steps = steps + 1
        return steps

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


# --- wrong: who takes part

wrong(
    "all batches first", "reads its batches before it takes its steps", {BATCHES: "    batches = iter(list(batches))\n"}
)
wrong("the number of batches", "raised TypeError", {"    steps = 0\n": "    steps, most = 0, len(batches)\n"})
wrong("barriers", "more collectives than needed", {STEP: "        dist.barrier()\n" + STEP})
wrong("different collectives", "with zeros, as long as anybody has data", {
    ZEROS + SUM: "            if len(y):\n                dist.all_reduce(parameter.grad)\n            else:\n"
    "                parameter.grad = torch.zeros_like(parameter)\n                dist.broadcast(parameter.grad, 0)\n"
})  # fmt: skip
wrong("no gradient at all", "raised", {ZEROS: ""})
wrong("only where there is a gradient", "with zeros, as long as anybody has data", {
    ZEROS + SUM: "            if parameter.grad is not None:\n    " + SUM
})  # fmt: skip
wrong("one step too many", "there is a step without any data", {
    END: "", "(len(y) / count)": "(len(y) / max(count, 1))", "        steps += 1": "        steps += 1\n        if count == 0:\n            return steps - 1"
})  # fmt: skip
wrong("returns its own number", "returns the number of steps, on every rank", {"steps += 1": "steps += len(y) > 0"})
wrong("returns a tensor", "returns the number of steps, on every rank", {"return steps": "return torch.tensor(steps)"})
wrong("without a step of its own", "a rank without data takes the step too", {STEP: "        if len(y):\n    " + STEP})
wrong("never waits", "never waits for", {SUM: SUM.replace("grad)", "grad, async_op=True)")})
wrong(
    "counts that overflow",
    "stops before its batches are used up",
    {"torch.tensor(len(y))": "torch.tensor(len(y) * 32, dtype=torch.uint8)", "len(y) / count": "len(y) * 32 / count"},
)


@wrong("a plain loop", "with zeros, as long as anybody has data")
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


@wrong("the shortest", "stops before its batches are used up")
def shortest():
    def train_uneven(model, optimizer, batches):
        batches, steps = iter(batches), 0
        while True:
            x, y = next(batches, (None, ()))
            facts = torch.tensor([len(y)])
            everyone = [torch.empty_like(facts) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, facts)
            counts = [one[0].item() for one in everyone]
            if min(counts) == 0:
                return steps
            optimizer.zero_grad()
            (functional.cross_entropy(model(x), y) * len(y) / sum(counts)).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            steps += 1

    return (train_uneven,)


wrong("rank 0 is asked too", "more collectives than needed", {
    END: "        more = torch.tensor(len(y))\n        dist.broadcast(more, 0)\n        if more == 0:\n            return steps\n"
})  # fmt: skip


@wrong("the length of rank 0", "stops before its batches are used up")
def length_of_rank_0():
    def train_uneven(model, optimizer, batches):
        batches, steps = iter(batches), 0
        while True:
            x, y = next(batches, (None, ()))
            more = torch.tensor([len(y)])
            dist.broadcast(more, 0)
            if not more.item():
                return steps
            optimizer.zero_grad()
            if len(y):
                functional.cross_entropy(model(x), y, reduction="sum").backward()
            flat = [torch.zeros_like(p).view(-1) if p.grad is None else p.grad.view(-1) for p in model.parameters()]
            flat = torch.cat([*flat, flat[0].new_tensor([len(y)])])
            dist.all_reduce(flat)
            sizes = [p.numel() for p in model.parameters()]
            for p, part in zip(model.parameters(), flat[:-1].split(sizes), strict=True):
                p.grad = part.view_as(p) / flat[-1]
            optimizer.step()
            steps += 1

    return (train_uneven,)


@wrong("lengths agreed first", "reads its batches before it takes its steps")
def lengths_agreed_first():
    def train_uneven(model, optimizer, batches):
        batches = list(batches)
        steps = torch.tensor(len(batches))
        dist.all_reduce(steps, op=dist.ReduceOp.MAX)
        for number in range(steps.item()):
            x, y = batches[number] if number < len(batches) else (None, ())
            count = torch.tensor(len(y))
            dist.all_reduce(count)
            optimizer.zero_grad()
            if len(y):
                (functional.cross_entropy(model(x), y) * (len(y) / count)).backward()
            for parameter in model.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
            optimizer.step()
        return steps.item()

    return (train_uneven,)


# --- wrong: how much is sent

wrong("objects", "more collectives than needed", {
    COUNT + ASK: "        counts = [0] * dist.get_world_size()\n        dist.all_gather_object(counts, len(y))\n"
    "        count = sum(counts)\n"
})  # fmt: skip
wrong(
    "twice", "more collectives than needed", {SUM: "            parameter.grad /= dist.get_world_size()\n" + SUM + SUM}
)


@wrong("all gradients of all ranks", "the gradients, and two numbers a step")
def all_gradients():
    def train_uneven(model, optimizer, batches):
        parameters = list(model.parameters())
        batches, steps = iter(batches), 0
        while True:
            x, y = next(batches, (None, ()))
            sums = [torch.zeros_like(parameter) for parameter in parameters]
            if len(y):
                sums = torch.autograd.grad(functional.cross_entropy(model(x), y, reduction="sum"), parameters)
            sizes = [parameter.numel() for parameter in parameters]
            place = torch.zeros(dist.get_world_size(), sum(sizes) + 1, dtype=sums[0].dtype)
            place[dist.get_rank()] = torch.cat([gradient.reshape(-1) for gradient in sums] + [torch.tensor([len(y)])])
            dist.all_reduce(place)
            *flat, count = place.sum(0).split([*sizes, 1])
            if not count:
                return steps
            for parameter, gradient in zip(parameters, flat, strict=True):
                parameter.grad = gradient.view_as(parameter) / count
            optimizer.step()
            steps += 1

    return (train_uneven,)


wrong("a group in each call", "more collectives than needed", {BATCHES: BATCHES + "    dist.new_group()\n"})
wrong("a file", "writes a file", {BATCHES: BATCHES + "    open('steps', 'w').close()\n"})


# --- wrong: the gradient

wrong("counts all steps", "the number of all samples so far", {
    "steps = 0": "steps = seen = 0", CLEAR: "        seen += count\n" + CLEAR, "len(y) / count": "len(y) / seen"
})  # fmt: skip
wrong("divided by its own", "each rank divides by its own number of samples", {" * (len(y) / count)": ""})
wrong("not cleared", "in step 0, the gradient is not that", {CLEAR: ""})
wrong("cleared behind the step", "in step 0", {CLEAR: "", STEP: STEP + CLEAR})
wrong("the mean over ranks with data", "each rank's mean weighs the same", {
    COUNT: "        count = torch.tensor(int(len(y) > 0))\n", "len(y) / count": "1 / count"
})  # fmt: skip
wrong(
    "the mean over the world",
    "are added up and divided by the world size",
    {"len(y) / count": "1 / dist.get_world_size()"},
)
wrong("the sum", "added up and not divided by the number of samples", {" * (len(y) / count)": " * len(y)"})
wrong(
    "three ranks always",
    "the gradient is not that of the mean loss",
    {"len(y) / count": "len(y) * dist.get_world_size() / count / 3"},
)
wrong(
    "gradients in float32",
    "the gradient is not that of the mean loss",
    {SUM: "            parameter.grad.copy_(parameter.grad.float())\n" + SUM},
)
wrong(
    "gradients in bfloat16",
    "the gradient is not that of the mean loss",
    {SUM: "            parameter.grad.copy_(parameter.grad.bfloat16())\n" + SUM},
)
wrong(
    "weights moved by hand",
    "optimizer.step()",
    {STEP: STEP + "        with torch.no_grad():\n            for p in parameters:\n                p.mul_(0.999)\n"},
)


@wrong("an old gradient", "still hands in the gradient of its last batch")
def old_gradient():
    def train_uneven(model, optimizer, batches):
        parameters = list(model.parameters())
        batches, steps = iter(batches), 0
        own, count = [torch.zeros_like(parameter) for parameter in parameters], 0
        while True:
            x, y = next(batches, (None, ()))
            facts = torch.tensor([len(y), len(y) or count])
            dist.all_reduce(facts)
            if facts[0] == 0:
                return steps
            if len(y):
                count = len(y)
                own = torch.autograd.grad(functional.cross_entropy(model(x), y, reduction="sum"), parameters)
            for parameter, gradient in zip(parameters, own, strict=True):
                parameter.grad = gradient.clone()
                dist.all_reduce(parameter.grad)
                parameter.grad /= facts[1]
            optimizer.step()
            steps += 1

    return (train_uneven,)


# --- wrong: what else is changed

wrong("train", "is in another mode", {BATCHES: BATCHES + "    model.train()\n"})
wrong(
    "thawed and frozen",
    "has another `requires_grad`",
    {"            return steps": "            model[0].bias.requires_grad_(False)\n            return steps"},
)
wrong(
    "the learning rate is scaled",
    "the learning rate are changed past the optimizer",
    {BATCHES: BATCHES + "    optimizer.param_groups[0]['lr'] *= dist.get_world_size()\n"},
)
wrong("the learning rate is scaled for each step", "the learning rate are changed past the optimizer", {
    "        optimizer.step()\n": "        optimizer.param_groups[0]['lr'] *= 2\n        optimizer.step()\n"
    "        optimizer.param_groups[0]['lr'] /= 2\n"
})  # fmt: skip
wrong("a byte counts", "the gradient is not that of the mean loss", {
    "torch.tensor(len(y))": "torch.tensor(len(y), dtype=torch.uint8)"
})  # fmt: skip
wrong(
    "the batch is normalised in place",
    "changes a batch that it was given",
    {"        if len(y):\n": "        if len(y):\n            x -= x.mean()\n"},
)
wrong(
    "a hook is left",
    "has a hook more than before",
    {BATCHES: BATCHES + "    model[0].bias.register_hook(lambda gradient: gradient)\n"},
)
wrong("seeded", "leaves torch's random numbers other", {BATCHES: BATCHES + "    torch.manual_seed(0)\n"})
wrong(
    "grad mode",
    "leaves grad mode other",
    {"            return steps": "            torch.set_grad_enabled(False)\n            return steps"},
)
wrong(
    "the library",
    "DistributedDataParallel, which does the exercise",
    {BATCHES: BATCHES + "    torch.nn.parallel.DistributedDataParallel(model)\n"},
)
wrong("a last batch of one is forgotten", "all ranks stop too early", {
    "if count == 0:": "if count <= (steps > 0):"
})  # fmt: skip
