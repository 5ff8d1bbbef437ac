"""Exercise 3 of the lab on the GIL and reference counts: a moving average that keeps no graph. What is not here is in the official
solution."""

import numpy
import torch
from known_answers import right, wrong
from torch.nn.functional import mse_loss

STEP = "        optimizer.step()\n"
LOOK = "        with torch.no_grad():\n            loss = mse_loss(model(watched[0]), watched[1]).item()\n"
LOSS = "        loss = mse_loss(model(watched[0]), watched[1])\n"
RETURN = "    return average"
right("the graph goes with its name; gradients cleared behind", {
    LOOK: LOSS[:-1] + ".item()\n", "optimizer.zero_grad()": "model.zero_grad()"
})  # fmt: skip
right("a running average on the GPU", {
    LOOK: LOSS.replace("mse_loss(model(watched[0]), watched[1])", "mse_loss(model(watched[0]), watched[1]).detach()"),
    RETURN: "    return average.item()",
})  # fmt: skip
right("model.train and eval", {LOOK: "        model.eval()\n" + LOOK + "        model.train()\n"})
right("numpy's number", {".item()": ".double().item()", RETURN: "    return __import__('numpy').float64(average)"})


@right("a function without a graph, and a list")
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
        n = len(losses)
        weights = [0.9 ** (n - 1)] + [0.1 * 0.9 ** (n - 1 - place) for place in range(1, n)]
        return float(numpy.dot(weights, losses))

    return (train_and_watch,)


@right("a closure, squares by hand")
def by_hand():
    def train_and_watch(model, optimizer, batches, watched):
        def one(batch):
            optimizer.zero_grad(set_to_none=True)
            (model(batch[0]) - batch[1]).pow(2).mean().backward()
            optimizer.step()
            with torch.no_grad():
                return (model(watched[0]).detach() - watched[1]).square().mean().item()

        average = one(batches[0])
        for batch in batches[1:]:
            average += 0.1 * (one(batch) - average)
        return average

    return (train_and_watch,)


GRAPH = "each step leaves the graph of a loss behind"
ITEM = {RETURN: "    return average.item()"}
LIST = {"    average = None\n": "    average, losses = None, []\n"}
wrong("unchanged", GRAPH, {LOOK: LOSS} | ITEM)
wrong("the name is deleted", GRAPH, {
    LOOK: LOSS, "0.1 * loss\n": "0.1 * loss\n        del loss\n"
} | ITEM)  # fmt: skip
wrong("only the return is a number", GRAPH, {LOOK: LOSS, RETURN: "    return float(average.detach())"})
wrong("a list of losses", GRAPH, LIST | {LOOK: LOSS + "        losses.append(loss)\n        loss = loss.item()\n"})
wrong(
    "a list of detached ones",
    "keep plain numbers",
    LIST | {LOOK: LOOK + "        losses.append(torch.tensor(loss, device=x.device))\n"},
)
wrong("a copy on the host", "but the host's does", LIST | {LOOK: LOOK + "        losses.append(torch.tensor(loss))\n"})
wrong("outputs as lists", "numbers pile up in the host's memory", LIST | {
    LOOK: LOOK + "        losses.append(model[0](watched[0]).tolist())\n"
})  # fmt: skip
wrong("collected", GRAPH, {LOOK: LOSS, "0.1 * loss\n": "0.1 * loss\n        __import__('gc').collect()\n"} | ITEM)
wrong("swept up although nothing leaks", "calls gc.collect()", {LOOK: LOOK + "        __import__('gc').collect()\n"})
wrong("the last graph lives on", "still there when the function has returned", {
    "def train_and_watch": "LAST = {}\n\n\ndef train_and_watch", LOOK: LOSS + "        LAST[0] = loss\n        loss = loss.item()\n"
})  # fmt: skip
wrong("a tensor comes back", "returns a plain number", {".item()": ""})
wrong("the momentum is thrown away", "what the optimizer keeps", {RETURN: "    optimizer.state.clear()\n" + RETURN})
wrong("no step", "each batch is trained on once", {STEP: ""})
wrong("left in eval mode", "another mode", {LOOK: "        model.eval()\n" + LOOK})
wrong("thawed", "what somebody has frozen", {
    LOOK: "        model.requires_grad_(False)\n" + LOOK + "        model.requires_grad_(True)\n"
})  # fmt: skip
