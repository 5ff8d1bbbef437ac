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


LEFT = "the activations of the hidden layer behind"
KEEP = {HOOK: "means.append(output)", RETURN: "    return [one.mean().item() for one in means]"}
wrong("only the hook is removed", LEFT, KEEP)
wrong("detached", LEFT, KEEP | {HOOK: "means.append(output.detach())"})
wrong("a mean with its graph", "one number stays", {".item()": "", RETURN: "    return [one.item() for one in means]"})
wrong("moved to the host", "but the host's does", KEEP | {HOOK: "means.append(output.detach().cpu())"})
wrong("the hook stays", "the model still has a hook", {REMOVE: ""})
