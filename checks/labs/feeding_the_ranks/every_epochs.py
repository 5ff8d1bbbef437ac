"""Check of ``train_every_epoch``: in each epoch all samples are dealt out anew, in another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks.engine import Reference
from checks.labs.feeding_the_ranks import epochs

TELL, STEP = "        sampler.set_epoch(epoch)\n", "            step(epoch, batch)"
SAMPLER = "DistributedSampler(dataset)\n"
OWN = (
    "torch.utils.data.SubsetRandomSampler(range(dist.get_rank(), len(dataset), dist.get_world_size()))\n"
    "    sampler.set_epoch = print\n"
)
SHUFFLED = "the samples are not shuffled at all"
ALIKE = "every epoch has the same order: the sampler that deals the samples out has to hear of each epoch, before its "
ALIKE += "order is drawn"
OFFICIAL = Reference("feeding_the_ranks", "train_every_epoch", {
    SHUFFLED: {SAMPLER: "DistributedSampler(dataset, shuffle=False)\n"},
    ALIKE: {TELL: ""},
    "the orders are one epoch late: the order is drawn when an iterator is made, and set_epoch must come before":
        {TELL: "", STEP: STEP + "\n" + TELL},
    "a rank keeps the samples that it had, and only shuffles them: shuffle all of them first, deal out then":
        {SAMPLER: OWN},
})  # fmt: skip
CASES = [{"samples": 23, "epochs": 4}, {"samples": 26, "epochs": 3}]


def play(case: dict[str, Any], train_every_epoch: Callable[..., Any]) -> dict[str, Any]:
    found = epochs.run(case["samples"], lambda data, step: train_every_epoch(data, case["epochs"], step))
    return epochs.seen(epochs.orders(case["samples"], found))
