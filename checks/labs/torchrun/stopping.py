"""Check of ``train_until``: all ranks stop after the same epoch, that in which the mean over all samples is good."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, refuse, watched
from checks.engine.plain import from_array
from checks.engine.watching import at_most, explained

SUMS = "        sums = torch.tensor(validate())\n        dist.all_reduce(sums)\n        total, count = sums.tolist()\n"


def _from_means(line: str) -> dict[str, str]:
    """A change: a number of this rank's mean decides, whatever the line makes of it."""
    mean = "        total, count = validate()\n        mean = torch.tensor(total / count if count else 0.0)\n"
    return {SUMS: f"{mean}        {line}\n        total, count = mean.item(), 1\n"}


DECIDES, ALL = "if total / count < good", "the mean over all samples of all ranks decides"
OFFICIAL = Reference("torchrun", "train_until", {
    f"it stops as soon as the loss of one rank is good enough: {ALL}":
        _from_means("dist.all_reduce(mean, dist.ReduceOp.MIN)"),
    f"it stops only when the loss of each single rank is good enough: {ALL}":
        _from_means("dist.all_reduce(mean, dist.ReduceOp.MAX)"),
    "it takes the mean of the ranks' means, so that a rank with 2 samples weighs as much as one with 20":
        _from_means("dist.all_reduce(mean, dist.ReduceOp.AVG)"),
    f"the loss of rank 0 decides for all: {ALL}": _from_means("dist.broadcast(mean, src=0)"),
    "the losses are added up, and never divided by the number of samples": {DECIDES: "if total < good"},
    "it never stops early": {DECIDES: "if False"},
})  # fmt: skip
# Means of three ranks in each epoch; each mistake takes another one of them for the last.
EACH = [(1, 1, 1), (2, 0.45, 2), (0.1, 0.9, 0.9), (0.9, 0.9, 0.1), (0.05, 0.6, 0.6), (0.4, 0.9, 0.4), (2, 0.3, 0.6),
        (0.2, 0.2, 0.2), (0.01, 0.01, 0.01), (1, 1, 1)]  # fmt: skip
CASES = [
    {"losses": losses, "good": 0.5, "samples": samples, "means": means}
    for losses, samples, means in (
        ("fall alike", [4, 4, 4], [(1,) * 3, (0.8,) * 3, (0.3,) * 3, (0.01,) * 3, (1,) * 3]),
        ("fall on one rank after the other", [2, 20, 8], EACH),
        ("are exactly `good` in epoch 2", [4, 2, 2], [(1, 1, 1), (0.5,) * 3, (0.25,) * 3, (0.125,) * 3]),
        ("are of no samples on a rank", [6, 0, 4], [(1, 0, 1), (0.6, 0, 0.6), (0.4, 0, 0.4), (0.1, 0, 0.1)]),
        ("are nan, and then never good", [3, 4, 5], [(math.nan,) * 3, (0.6,) * 3]),
        ("are good at once", [3, 4, 5], [(0.2,) * 3, (0.1,) * 3]),
    )
]


@exercise(OFFICIAL, CASES, title="Stop when it is good enough", minutes=15, ranks=(3, 2, 1))
def stop_early(case: dict[str, Any], train_until: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``train_until(most, good, train_epoch, validate)``."""
    samples, most = case["samples"][dist.get_rank()], len(case["means"])
    calls: list[str] = []

    def train_epoch() -> None:
        calls.append("train_epoch")
        dist.all_reduce(torch.ones(5))  # the gradients, 20 bytes

    def validate() -> tuple[float, int]:
        calls.append("validate")
        epoch = calls.count("train_epoch")
        refuse(not 0 < epoch <= most, "validate() is called before an epoch was trained, or after more than `most`")
        return float(case["means"][epoch - 1][dist.get_rank()] * samples), samples

    fault = "The ranks do not stop after the same epoch: whatever decides must be the same number on all of them"
    with explained(fault), watched() as seen:
        returned = train_until(most, case["good"], train_epoch, validate)
    epochs = calls.count("train_epoch")
    fault = "train_epoch() and validate() are not called in turn, once each in an epoch"
    refuse(calls != ["train_epoch", "validate"] * epochs, fault, measured=calls[:4])
    deciding = [call for call in seen.calls if call["bytes"] != 20]
    at_most(deciding, 2 * epochs, 16, f"{epochs} epochs were trained, and a sum and a number fit into one tensor")
    return {"the epochs that were trained": epochs, "the number that comes back": from_array(returned)}
