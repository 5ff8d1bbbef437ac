"""Check of ``train_and_log``: the means of what a layer puts out, and no hook behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import kind_of, number
from checks.labs.gil_and_refcounting.leaks import Loop

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
    "gradients pile up from step to step: clear them before each backward": {"        optimizer.zero_grad()\n": ""},
})  # fmt: skip
CASES = [{"steps": 7}, {"steps": 1}]
STAYS = "each step leaves the activations of the hidden layer behind"


@exercise(OFFICIAL, CASES, title="A hook that collects", difficulty=2, minutes=15, timeout=150)
def hidden_means(case: dict[str, Any], train_and_log: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``train_and_log(model, optimizer, batches)``, which returns a list of means."""
    loop = Loop(case["steps"])
    for layer in loop.model:
        layer.register_forward_hook(_of_somebody_else)
    loop.optimizer.register_step_post_hook(loop.look)
    with loop.watched(STAYS):
        result = train_and_log(loop.model, loop.optimizer, loop.batches)
    hooks = [hook for part in loop.model.modules() for hook in (part._forward_hooks | part._forward_pre_hooks).values()]
    fault = "the model still has a hook when the function returns, and goes on collecting: handle.remove()"
    refuse(set(hooks) - {_of_somebody_else}, fault)
    fault = "a hook of somebody else is gone. Take away your own only: handle.remove()"
    refuse(len(hooks) < len(loop.model), fault)
    means = [number(mean) for mean in result] if isinstance(result, list | tuple) else [None]
    fault = "train_and_log returns a list of plain numbers, floats: .item() makes one of a tensor"
    refuse(None in means, fault, measured=kind_of(result))
    return {"the weights after the training": loop.weights(), "the means, one for each step": torch.tensor(means)}


def _of_somebody_else(*_: Any) -> None:
    """A hook that does nothing."""
