"""Exercise 3 of the lab on the GIL and reference counts: means of what a layer puts out. What is not here is in the official
solution."""

import torch
from known_answers import right, wrong
from torch.nn.functional import mse_loss

HOOK = "means.append(output.mean().item())"
REGISTER = f"    handle = model[1].register_forward_hook(lambda layer, inputs, output: {HOOK})\n"
TRAIN, STEP, REMOVE = (
    "        mse_loss(model(x), y).backward()\n",
    "        optimizer.step()\n",
    "    handle.remove()\n",
)
RETURN = "    return means"
CLEAR = "        optimizer.zero_grad()\n"
LOOP = "    for x, y in batches:\n" + CLEAR + TRAIN + STEP
DEEPER = LOOP.replace("    for", "        for").replace("\n        ", "\n            ")
right("removed whatever happens", {LOOP + REMOVE: f"    try:\n{DEEPER}    finally:\n        handle.remove()\n"})
right("the handle as a context", {
    REGISTER + LOOP + REMOVE: REGISTER.replace("handle = ", "with ").replace("item()))", "item())):") + DEEPER
})  # fmt: skip
right("the next layer's input", {
    REGISTER: "    handle = model[2].register_forward_pre_hook(lambda _, inputs: means.append(float(inputs[0].detach().mean())))\n"
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


LEFT = "the activations of the hidden layer behind"
KEEP = {HOOK: "means.append(output)", RETURN: "    return [one.mean().item() for one in means]"}
wrong("unchanged", LEFT, KEEP | {REMOVE: ""})
wrong("only the hook is removed", LEFT, KEEP)
wrong("detached", LEFT, KEEP | {HOOK: "means.append(output.detach())"})
wrong("a mean with its graph", "one number stays", {".item()": "", RETURN: "    return [one.item() for one in means]"})
wrong("a mean without its graph", "one number stays", {
    "output.mean().item()": "output.detach().mean()", RETURN: "    return [one.item() for one in means]"
})  # fmt: skip
wrong("moved to the host", "but the host's does", KEEP | {HOOK: "means.append(output.detach().cpu())"})
wrong("as lists on the host", "numbers pile up in the host's memory", {
    "output.mean().item()": "output.flatten().tolist()", RETURN: "    return [sum(one) / len(one) for one in means]"
})  # fmt: skip
wrong("the hook stays", "the model still has a hook", {REMOVE: ""})
wrong("a hook in each step", "the model still has a hook", {REGISTER: "", REMOVE: "", CLEAR: CLEAR + "    " + REGISTER})
wrong("all hooks are removed", "Take away your own only", {REMOVE: "    model[1]._forward_hooks.clear()\n"})
wrong("a forward more, counted too", "one mean for each step", {LOOP: "    model(batches[0][0])\n" + LOOP})
wrong("one number", "returns a list of plain numbers", {RETURN: "    return sum(means) / len(means)"})
wrong("tensors", "returns a list of plain numbers", {RETURN: "    return list(torch.tensor(means))"})
wrong("swept up although nothing leaks", "calls gc.collect()", {STEP: STEP + "        __import__('gc').collect()\n"})
wrong("the output is replaced", "raised TypeError", {HOOK: HOOK + " or 0.0"})
