"""Check of ``train_and_log``: the means of what a layer puts out, and no hook behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, refuse
from checks.engine.plain import kind_of, number
from checks.labs.gil_and_refcounting import leaks

MEAN, HOOK = "output.mean()", "means.append(output.mean().item())"
REGISTER = f"    handle = model[1].register_forward_hook(lambda layer, inputs, output: {HOOK})\n"
STEP, REMOVE = "        optimizer.step()\n", "    handle.remove()\n"
OFFICIAL = Reference("gil_and_refcounting", "train_and_log", {
    "that is the mean of what model[0] puts out: model[1] puts out what your hook gets as output": {
        MEAN: "inputs[0].mean()"},
    "that is the mean after the step: take what the training's own forward puts out": {
        REGISTER: "", REMOVE: "",
        STEP: STEP + "        with torch.no_grad():\n            means.append(model[:2](x).mean().item())\n"},
    "what a hook returns becomes the layer's output, and the training needs its graph: return nothing": {
        HOOK: f"({HOOK}, output.detach())[1]"},
    "the hook changes the layer's output: compute with a copy": {
        HOOK: "means.append(output.data.mul_(1.1).mean().item())"},
    "gradients pile up from step to step: clear them before each backward": {"        optimizer.zero_grad()\n": ""},
})  # fmt: skip
CASES = leaks.CASES
STAYS = "each step leaves the activations of the hidden layer behind"


def play(case: dict[str, Any], train_and_log: Callable[..., Any]) -> dict[str, Any]:
    loop = leaks.Loop(case)
    loop.optimizer.register_step_post_hook(loop.look)
    modules = list(loop.model.modules())
    before = [dict(module._forward_hooks | module._forward_pre_hooks) for module in modules]
    with loop.watched_for(STAYS):
        result = train_and_log(loop.model, loop.optimizer, loop.batches)
        kind = kind_of(result)
        found = [number(one) for one in result] if isinstance(result, list) else [None]
        del result
    for module, mine in zip(modules, before, strict=True):
        after = module._forward_hooks | module._forward_pre_hooks
        words = "the model still has a hook when the function returns, and goes on collecting: handle.remove()"
        refuse(set(after) - set(mine), words)
        refuse(set(mine) - set(after), "a hook of somebody else is gone. Take away your own only: handle.remove()")
    trained = loop.trained()
    words = "train_and_log returns a list of plain numbers, floats: .item() makes one of a tensor"
    refuse(not all(isinstance(one, float) for one in found), words, measured=kind)
    words = "the list has one mean for each step"
    refuse(len(found) != case["steps"], words, measured=len(found), expected=case["steps"])
    return {**trained, "the means": torch.tensor(found, dtype=loop.model[0].weight.dtype)}
