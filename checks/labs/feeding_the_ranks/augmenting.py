"""Check of ``train_augmented``: the data set knows the epoch in whichever process it is read, and workers read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks.engine import Reference, refuse
from checks.labs.feeding_the_ranks import epochs
from checks.labs.feeding_the_ranks.every_epochs import ALIKE

TELL, TELL_DATA = "        sampler.set_epoch(epoch)\n", "        dataset.set_epoch(epoch)\n"
STEPS = "        for batch in loader:\n            step(epoch, batch)"
OFFICIAL = Reference("feeding_the_ranks", "train_augmented", {
    ALIKE: {TELL: ""},
    "the data set never hears of an epoch: the noise is the same in all of them": {TELL_DATA: ""},
    "the workers keep the data set of the first epoch: they hold a copy that was made when they started, and set_epoch "
    "changes the original":
        {"num_workers=1)": "num_workers=1, persistent_workers=True)"},
    "the data set is one epoch late: workers get their copy when the iterator is made, and set_epoch comes before":
        {TELL_DATA: "", STEPS: STEPS + "\n" + TELL_DATA},
    "the data set's epochs are counted from 1, those of step from 0":
        {TELL_DATA: TELL_DATA.replace("(epoch)", "(epoch + 1)")},
})  # fmt: skip
CASES = [{"samples": 23, "epochs": 4}, {"samples": 26, "epochs": 3}]


def play(case: dict[str, Any], train_augmented: Callable[..., Any]) -> dict[str, Any]:
    found = epochs.run(case["samples"], lambda data, step: train_augmented(data, case["epochs"], step))
    seen = epochs.seen(epochs.orders(case["samples"], found))
    alone = any(not sample.by_worker for rank in found for samples in rank.values() for sample in samples)
    words = "samples are read by the training process itself, so the GPU waits for each: keep num_workers=1 or more"
    refuse(alone, words)
    for epoch in found[0]:
        believed = sorted({sample.epoch for rank in found for sample in rank[epoch]})
        seen[f"which epochs the data set believes in, in epoch {epoch}"] = ", ".join(map(str, believed))
    return seen
