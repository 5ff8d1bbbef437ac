"""Check of ``train_and_watch``: a moving average of losses that keeps no graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from checks.core import Reference, refuse
from checks.gil_and_refcounting import leaks
from checks.plain import kind_of, number

STEP = "        optimizer.step()\n"
LOOK = "        with torch.no_grad():\n            loss = mse_loss(model(watched[0]), watched[1]).item()\n"
TRAIN = "        mse_loss(model(x), y).backward()\n"
AVERAGE = "average = loss if average is None else 0.9 * average + 0.1 * loss"
OFFICIAL = Reference("gil_and_refcounting", "train_and_watch", {
    "that is the last watched loss: return the moving average": {AVERAGE: "average = loss"},
    "that is the mean of the watched losses, not their moving average: the last ones count most": {
        AVERAGE: "average = (average or 0) + loss / len(batches)"},
    "the old average and the new loss have changed places: 0.9 belongs to the old one": {
        "0.9 * average + 0.1 * loss": "0.1 * average + 0.9 * loss"},
    "the average begins with the first watched loss, not with 0": {
        "loss if average is None else 0.9 * average": "0.9 * (average or 0)"},
    "look at the watched batch after the step, not before it": {TRAIN + STEP + LOOK: LOOK + TRAIN + STEP},
    "these are the losses of the training: look at the watched batch": {
        TRAIN: "        mine = mse_loss(model(x), y)\n        mine.backward()\n", LOOK: "        loss = mine.item()\n"},
    "gradients pile up from step to step: clear them before each backward": {"        optimizer.zero_grad()\n": ""},
    "a second backward changes the gradients: the watched loss needs none": {
        LOOK: "        loss = mse_loss(model(watched[0]), watched[1])\n        loss.backward()\n"
        "        loss = loss.item()\n"},
    "the batches come in their order": {"in batches:": "in reversed(batches):"},
})  # fmt: skip
CASES = leaks.CASES
STAYS = "each step leaves the graph of a loss behind, with its activations"


def play(case: dict[str, Any], train_and_watch: Callable[..., Any]) -> dict[str, Any]:
    loop = leaks.Loop(case)
    loop.optimizer.register_step_post_hook(loop.look)
    with loop.watched_for(STAYS):
        result = train_and_watch(loop.model, loop.optimizer, loop.batches, loop.watched)
        found, kind = number(result), kind_of(result)
        del result
    trained = loop.trained()
    words = "train_and_watch returns a plain number, a float: .item() makes one of a tensor"
    refuse(not isinstance(found, float), words, measured=kind)
    return {**trained, "the moving average": torch.tensor(found, dtype=loop.model[0].weight.dtype)}
