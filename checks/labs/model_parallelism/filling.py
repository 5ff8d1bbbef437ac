"""Check of ``gpipe_step``: all forwards, then all backwards, with gradients and loss of one device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise
from checks.labs.model_parallelism import steps

SHARE, BACK, EACH = (
    " * len(y) / len(targets)",
    "    for loss in losses:\n        loss.backward()\n",
    ".tensor_split(micro_batches)",
)
MOVE = '            x = stage(x.to(f"simgpu:{i}"))\n'
KEEP = "        losses.append(loss_fn(x, y) * len(y) / len(targets))\n"
OFFICIAL = Reference("model_parallelism", "gpipe_step", {
    "each micro-batch counts fully: the loss is a mean, so weight it by the micro-batch's share of the samples":
        {SHARE: ""},
    "every micro-batch has the same weight, but they are not of the same size: weight each by its share of the samples":
        {SHARE: " / micro_batches"},
    "the samples at the end of the batch are left out: m need not divide their number":
        {f"batch{EACH}": "batch.split(len(batch) // micro_batches)[:micro_batches]",
         f"targets{EACH}": "targets.split(len(targets) // micro_batches)[:micro_batches]"},
    "the gradients that were there before the step are lost: add to them, as backward does":
        {"    losses = []\n": "    losses = []\n    [stage.zero_grad() for stage in stages]\n"},
    "only the last micro-batch's gradients are left: add them up":
        {"        loss.backward()\n": "        [one.zero_grad() for one in stages]\n        loss.backward()\n"},
    "the loss that comes back is that of the last micro-batch":
        {"sum(loss.detach() for loss in losses)": "loss.detach()"},
    "the batch is not cut into micro-batches": {f"zip(batch{EACH}, targets{EACH}, strict=True)": "[(batch, targets)]"},
    "there are fewer micro-batches than m: chunk may give fewer parts than asked for, tensor_split does not":
        {"tensor_split": "chunk"},
    "each backward follows its forward: GPipe runs the forwards of all micro-batches first":
        {KEEP: f"{KEEP}        losses[-1].backward()\n", BACK: ""},
    "activations go over a border twice": {MOVE: f'            x.to(f"simgpu:{{i}}")\n{MOVE}'},
})  # fmt: skip
WAITS = (
    "the bubble is too large: a copy begins when all is done that was launched before on the GPU that it leaves and on "
    "the one that it goes to, so launch it before their other work"
)


@exercise(OFFICIAL, steps.CASES, title="A GPipe step", difficulty=2, minutes=20)
def gpipe(case: dict[str, Any], gpipe_step: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``gpipe_step(stages, batch, targets, loss_fn, micro_batches)``."""
    return steps.play(case, gpipe_step, lambda stage, p, m: "F" * m + "B" * m, WAITS, most=math.inf)
