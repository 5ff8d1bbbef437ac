"""Exercise 3 of the lab on the GIL and reference counts: a mean loss that keeps no graph."""

# ruff: noqa: F401 (modules that changed answers use)
import collections
import gc
import itertools

import numpy
import torch
from known_answers import right, wrong
from torch.nn.functional import mse_loss


def train_and_watch(model, optimizer, batches, watched):
    total = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            total += mse_loss(model(watched[0]), watched[1]).item()
    return total / len(batches)


LOOP = "    for x, y in batches:\n"
TRAIN = "        mse_loss(model(x), y).backward()\n"
STEP = "        optimizer.step()\n"
LOOK = "        with torch.no_grad():\n            total += mse_loss(model(watched[0]), watched[1]).item()\n"
LOSS = STEP + "        loss = mse_loss(model(watched[0]), watched[1])\n"
RETURN = "    return total / len(batches)"
LIST = {"    total = 0.0\n": "    losses = []\n"}
EQUAL = {
    "23: arguments of `mse_loss(model(x), y)` swapped": "a square has no direction",
    "26: arguments of `mse_loss(model(watched[0]), watched[1])` swapped": "a square has no direction",
}


# --- right, and written differently

right("the graph goes with its name", {LOOK: "        total += mse_loss(model(watched[0]), watched[1]).item()\n"})
right(
    "a running sum on the GPU",
    {STEP + LOOK: LOSS + "        total += loss.detach()\n", RETURN: "    return (total / len(batches)).item()"},
)
right("model.train and eval", {LOOK: "        model.eval()\n" + LOOK + "        model.train()\n"})
right("gradients cleared behind", {"        optimizer.zero_grad()\n": "        model.zero_grad()\n"})
right("numpy's mean", LIST | {
    "total += mse_loss(model(watched[0]), watched[1]).item()": "losses.append(mse_loss(model(watched[0]), watched[1]).item())",
    RETURN: "    return numpy.mean(losses)",
})  # fmt: skip
right("fsum", LIST | {
    "total += mse_loss(model(watched[0]), watched[1]).item()": "losses.append(float(mse_loss(model(watched[0]), watched[1])))",
    RETURN: "    import math\n\n    return math.fsum(losses) / len(losses)"
})  # fmt: skip


@right("a function without a graph")
def look_without_a_graph():
    @torch.no_grad()
    def look(model, x, y):
        return float(mse_loss(model(x), y))

    def train_and_watch(model, optimizer, batches, watched):
        losses = []
        for x, y in batches:
            loss = mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(look(model, *watched))
        return sum(losses) / len(losses)

    return (train_and_watch,)


@right("inference mode, a closure, squares by hand")
def by_hand():
    def train_and_watch(model, optimizer, batches, watched):
        def one(batch):
            optimizer.zero_grad(set_to_none=True)
            (model(batch[0]) - batch[1]).pow(2).mean().backward()
            optimizer.step()
            with torch.no_grad():
                return (model(watched[0]).detach() - watched[1]).square().mean().item()

        return float(numpy.mean([one(batch) for batch in batches]))

    return (train_and_watch,)


# --- wrong

wrong("unchanged", "each step leaves the graph of a loss behind", {
    STEP + LOOK: LOSS + "        total += loss\n", RETURN: "    return total.item() / len(batches)"
})  # fmt: skip
wrong("the name is deleted", "each step leaves the graph of a loss behind", {
    STEP + LOOK: LOSS + "        total += loss\n        del loss\n", RETURN: "    return total.item() / len(batches)"
})  # fmt: skip
wrong("a list of losses", "each step leaves the graph of a loss behind", LIST | {
    STEP + LOOK: LOSS + "        losses.append(loss)\n", RETURN: "    return sum(losses).item() / len(losses)"
})  # fmt: skip
wrong("the last five graphs", "each step leaves the graph of a loss behind", {
    "    total = 0.0\n": "    total, last = 0.0, collections.deque(maxlen=5)\n",
    STEP + LOOK: LOSS + "        last.append(loss)\n        total += loss.item()\n",
})  # fmt: skip
wrong("nodes of the graph", "each step leaves the graph of a loss behind", {
    "    total = 0.0\n": "    total, nodes = 0.0, []\n",
    STEP + LOOK: LOSS + "        nodes.append(loss.grad_fn)\n        total += loss.item()\n",
})  # fmt: skip
wrong("collected", "each step leaves the graph of a loss behind", {
    STEP + LOOK: LOSS + "        total += loss\n        gc.collect()\n", RETURN: "    return total.item() / len(batches)"
})  # fmt: skip
wrong("swept up although nothing leaks", "calls gc.collect()", {LOOK: LOOK + "        gc.collect()\n"})
wrong("a detached list", "keep plain numbers", LIST | {
    STEP + LOOK: LOSS + "        losses.append(loss.detach())\n", RETURN: "    return torch.stack(losses).mean().item()"
})  # fmt: skip
wrong("a copy on the host", "but the host's does", LIST | {
    STEP + LOOK: LOSS + "        losses.append(loss.detach().cpu())\n", RETURN: "    return sum(losses).item() / len(losses)"
})  # fmt: skip
wrong("outputs as lists", "numbers pile up in the host's memory", {
    "    total = 0.0\n": "    total, outs = 0.0, []\n",
    LOOK: LOOK + "        outs.append([float(i) for i in range(2000)])\n",
})  # fmt: skip
wrong("outputs in numpy", "numbers pile up in the host's memory", {
    "    total = 0.0\n": "    total, outs = 0.0, []\n",
    LOOK: LOOK + "        outs.append(numpy.array(model[0](watched[0]).detach().cpu().tolist()))\n",
})  # fmt: skip
wrong("the last graph lives on", "still there when the function has returned", {
    "def train": "LAST = {}\n\n\ndef train", STEP + LOOK: LOSS + "        LAST[0] = loss\n        total += loss.item()\n"
})  # fmt: skip
wrong("a tensor comes back", "returns a plain number", {".item()": "", RETURN: RETURN})
wrong("the sum", "divide by the number of batches", {" / len(batches)": ""})
wrong("divided by ten", "does not have the right numbers", {"len(batches)": "10"})
wrong("only the last", "is the last one", {"total +=": "total =", " / len(batches)": ""})
wrong("before the step", "look at the watched batch after each step", {TRAIN + STEP + LOOK: LOOK + TRAIN + STEP})
wrong("the training's loss", "is that of the training", {
    TRAIN: "        loss = mse_loss(model(x), y)\n        loss.backward()\n        total += loss.item()\n", LOOK: ""
})  # fmt: skip
wrong("every second step", "does not have the right numbers", {
    LOOK: LOOK.replace("total +=", "total += 2 * (int(total * 1e6) % 2) *")
})  # fmt: skip
wrong("a second backward", "is there a second backward", {
    STEP + LOOK: LOSS + "        loss.backward()\n        total += loss.item()\n"
})  # fmt: skip
wrong("gradients pile up", "the model is not trained as before", {"        optimizer.zero_grad()\n": ""})
wrong("cleared from the second step on", "the model is not trained as before", {
    LOOP: "    for number, (x, y) in enumerate(batches):\n", "        optimizer.zero_grad()\n": "        if number:\n            optimizer.zero_grad()\n"
})  # fmt: skip
wrong(
    "the momentum is thrown away",
    "the optimizer keeps other numbers",
    {RETURN: "    optimizer.state.clear()\n" + RETURN},
)
wrong("cleared at the end", "the gradients afterwards", {LOOK: LOOK + "        optimizer.zero_grad()\n"})
wrong("no step", "each batch is trained on once", {STEP: ""})
wrong("two steps", "each batch is trained on once", {STEP: STEP + STEP})
wrong("the last batch is left out", "each batch is trained on once", {LOOP: "    for x, y in batches[:-1]:\n"})
wrong("the other way round", "the model is not trained as before", {LOOP: "    for x, y in reversed(batches):\n"})
wrong("the output detached", "does not require grad", {"mse_loss(model(x), y)": "mse_loss(model(x).detach(), y)"})
wrong("left in eval mode", "another mode", {LOOK: "        model.eval()\n" + LOOK})
wrong(
    "no gradients any more",
    "replaces torch.set_grad_enabled",
    {LOOK: "        torch.set_grad_enabled = print\n" + LOOK},
)
wrong("the weights stay frozen", "another `requires_grad`", {RETURN: "    model.requires_grad_(False)\n" + RETURN})
wrong("batches thrown away", "is not as before (length)", {LOOP: "    for x, y in [batches.pop(0) for _ in range(n)]:\n",
    "    total = 0.0\n": "    total, n = 0.0, len(batches)\n", RETURN: "    return total / n"})  # fmt: skip
wrong("batches overwritten", "has other numbers than before", {LOOK: LOOK + "        x.zero_()\n"})
wrong("another learning rate", "was replaced", {RETURN: "    optimizer.param_groups[0]['lr'] = 0.0\n" + RETURN})
wrong(
    "weights are nudged",
    "the model is not trained as before",
    {
        "(model(watched[0]), watched[1])": "(model(watched[0]) + 0 * next(model.parameters()).data.add_(1e-6).sum(), watched[1])"
    },
)
wrong("thaws what somebody had frozen", "it was frozen, or thawed", {
    "        with torch.no_grad():\n": "        model.requires_grad_(True)\n        with torch.no_grad():\n"
})  # fmt: skip
