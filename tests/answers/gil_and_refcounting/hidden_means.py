"""Exercise 4 of the lab on the GIL and reference counts: means of what a layer puts out, and no hook behind."""

# ruff: noqa: F401 (modules that changed answers use)
import gc

import numpy
import torch
from known_answers import right, wrong
from torch.nn.functional import mse_loss


def train_and_log(model, optimizer, batches):
    means = []
    handle = model[1].register_forward_hook(lambda layer, inputs, output: means.append(output.mean().item()))
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    handle.remove()
    return means


HOOK = "means.append(output.mean().item())"
REGISTER = (
    "    handle = model[1].register_forward_hook(lambda layer, inputs, output: means.append(output.mean().item()))\n"
)
TRAIN = "        mse_loss(model(x), y).backward()\n"
STEP = "        optimizer.step()\n"
REMOVE = "    handle.remove()\n"
EQUAL = {"18: arguments of `mse_loss(model(x), y)` swapped": "a square has no direction"}


# --- right, and written differently

right("removed whatever happens", {
    "    for x, y in batches:\n        optimizer.zero_grad()\n" + TRAIN + STEP + REMOVE:
    "    try:\n        for x, y in batches:\n            optimizer.zero_grad()\n            mse_loss(model(x), y).backward()\n"
    "            optimizer.step()\n    finally:\n        handle.remove()\n"
})  # fmt: skip
right("the handle as a context", {
    REGISTER + "    for x, y in batches:\n        optimizer.zero_grad()\n" + TRAIN + STEP + REMOVE:
    REGISTER.replace("handle = ", "with ").replace(")))\n", "))):\n").replace("item()))):", "item())):")
    + "        for x, y in batches:\n            optimizer.zero_grad()\n            mse_loss(model(x), y).backward()\n"
    "            optimizer.step()\n"
})  # fmt: skip
right("the next layer's input", {
    "model[1].register_forward_hook(lambda layer, inputs, output: means.append(output.mean().item()))":
    "model[2].register_forward_pre_hook(lambda layer, inputs: means.append(float(inputs[0].detach().mean())))"
})  # fmt: skip


@right("by hand")
def by_hand():
    def train_and_log(model, optimizer, batches):
        means = []
        for x, y in batches:
            hidden = model[1](model[0](x))
            with torch.no_grad():
                means.append(float(hidden.mean()))
            optimizer.zero_grad()
            mse_loss(model[2](hidden), y).backward()
            optimizer.step()
        return means

    return (train_and_log,)


@right("a hook for one step")
def hook_for_one_step():
    def train_and_log(model, optimizer, batches):
        means = [0.0] * len(batches)
        for number, (x, y) in enumerate(batches):
            optimizer.zero_grad()

            def look(layer, inputs, output, number=number):
                means[number] = output.detach().mean().item()

            handle = model[1].register_forward_hook(look)
            try:
                loss = mse_loss(model(x), y)
            finally:
                handle.remove()
            loss.backward()
            optimizer.step()
        return means

    return (train_and_log,)


@right("once more without a graph")
def once_more():
    def train_and_log(model, optimizer, batches):
        def step(x, y):
            with torch.no_grad():
                mean = model[:2](x).mean().item()
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            return mean

        return [step(x, y) for x, y in batches]

    return (train_and_log,)


# --- wrong

KEEP = {"means.append(output.mean().item())": "means.append(output)",
        "    return means": "    return [one.mean().item() for one in means]"}  # fmt: skip
wrong("only the hook is removed", "the activations of the hidden layer behind", KEEP)
wrong("unchanged", "the activations of the hidden layer behind", KEEP | {REMOVE: ""})
wrong("detached", "the activations of the hidden layer behind", KEEP | {HOOK: "means.append(output.detach())"})
wrong("collected", "the activations of the hidden layer behind", KEEP | {STEP: STEP + "        gc.collect()\n"})
wrong("a mean with its graph", "a tensor with one number stays", {
    ".item()": "", "    return means": "    return [one.item() for one in means]"
})  # fmt: skip
wrong("a mean without its graph", "a tensor with one number stays", {
    "output.mean().item()": "output.detach().mean()", "    return means": "    return [one.item() for one in means]"
})  # fmt: skip
wrong("moved to the host", "but the host's does", KEEP | {HOOK: "means.append(output.detach().cpu())"})
wrong("means on the host", "but the host's does", {"output.mean().item()": "output.mean().detach().cpu()"})
wrong("as lists on the host", "numbers pile up in the host's memory", {
    "output.mean().item()": "output.detach().cpu().flatten().tolist()",
    "    return means": "    return [sum(one) / len(one) for one in means]"
})  # fmt: skip
wrong("in numpy", "numbers pile up in the host's memory", {
    "output.mean().item()": "numpy.array(output.detach().cpu().tolist())",
    "    return means": "    return [float(one.mean()) for one in means]"
})  # fmt: skip
wrong("the hook stays", "the model still has a hook", {REMOVE: ""})
wrong("a hook in each step", "the model still has a hook", {
    REGISTER: "", REMOVE: "", "        optimizer.zero_grad()\n": REGISTER.replace("    ", "        ") + "        optimizer.zero_grad()\n"
})  # fmt: skip
wrong("all hooks are removed", "Take away your own hook only", {REMOVE: "    model[1]._forward_hooks.clear()\n"})
wrong("a hook on the whole model stays", "the model still has a hook", {
    REMOVE: REMOVE + "    model.register_forward_hook(lambda *_: None)\n"
})  # fmt: skip
wrong("what goes in", "is that of what model[0] puts out", {"output.mean()": "inputs[0].mean()"})
wrong("another layer", "is that of what model[0] puts out", {"model[1]": "model[0]"})
wrong("the last layer", "is that of what model[2] puts out", {"model[1]": "model[2]"})
wrong("a sum", "does not have the right numbers", {"output.mean()": "output.sum()"})
wrong("absolute values", "does not have the right numbers", {"output.mean()": "output.abs().mean()"})
wrong("after the step", "is that after the steps", {
    REGISTER: "", REMOVE: "", STEP: STEP + "        with torch.no_grad():\n            means.append(model[:2](x).mean().item())\n"
})  # fmt: skip
wrong("in half precision", "is off by", {"output.mean()": "output.bfloat16().mean()"})
wrong("one number", "returns a list of plain numbers", {"    return means": "    return sum(means) / len(means)"})
wrong("a tuple", "returns a list of plain numbers", {"    return means": "    return tuple(means)"})
wrong("whole numbers", "returns a list of plain numbers", {"output.mean().item()": "int(output.mean().item())"})
wrong("only the last", "one mean for each step", {"    return means": "    return means[-1:]"})
wrong(
    "a forward more, counted too",
    "one mean for each step",
    {"    for x, y in": "    model(batches[0][0])\n    for x, y in"},
)
wrong("the output is replaced by itself without a graph", "the training needs its graph", {
    HOOK: "(means.append(output.mean().item()), output.detach())[1]"
})  # fmt: skip
wrong("the output is replaced", "raised TypeError", {HOOK: HOOK + " or 0.0"})
wrong(
    "the output is changed",
    "the model is not trained as before",
    {HOOK: "means.append(output.data.mul_(1.1).mean().item())"},
)
wrong("cleared from the second step on", "the model is not trained as before", {
    "    for x, y in batches:\n": "    for number, (x, y) in enumerate(batches):\n", "        optimizer.zero_grad()\n": "        if number:\n            optimizer.zero_grad()\n"
})  # fmt: skip
wrong(
    "the momentum is thrown away",
    "the optimizer keeps other numbers",
    {REMOVE: REMOVE + "    optimizer.state.clear()\n"},
)
wrong("gradients pile up", "the model is not trained as before", {"        optimizer.zero_grad()\n": ""})
wrong("batches twice", "each batch is trained on once", {"in batches:": "in batches * 2:"})
wrong("an attribute on the model", "attributes", {"    return means": "    model.means = means\n    return means"})
wrong("the layer gets another forward", "attributes", {
    "    return means": "    model[1].forward = model[1].forward\n    return means"
})  # fmt: skip
wrong("swept up although nothing leaks", "calls gc.collect()", {STEP: STEP + "        gc.collect()\n"})
wrong("only in train mode", "one mean for each step", {
    "means.append(output.mean().item())": "means.append(output.mean().item()) if layer.training else None"
})  # fmt: skip
