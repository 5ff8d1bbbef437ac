"""Check of ``train_until``: all ranks stop after the same epoch, that in which the mean over all samples is good."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, refuse, watched
from checks.engine.watching import explained

SUMS = """        sums = torch.tensor(validate())
        dist.all_reduce(sums)
        total, count = sums.tolist()
"""


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
    "it returns the last epoch's number, counted from 0: return how many epochs were trained":
        {"return epoch + 1": "return epoch"},
})  # fmt: skip
# Means of three ranks in each epoch; each mistake takes another one of them for the last.
_EACH = [(1, 1, 1), (2, 0.45, 2), (0.1, 0.9, 0.9), (0.9, 0.9, 0.1), (0.05, 0.6, 0.6), (0.4, 0.9, 0.4), (2, 0.3, 0.6),
         (0.2, 0.2, 0.2), (0.01, 0.01, 0.01), (1, 1, 1)]  # fmt: skip
CASES = [
    {"losses": losses, "good": 0.5, "samples": samples, "means": [list(means) for means in epochs]}
    for losses, samples, epochs in (
        ("fall alike", [4, 4, 4], [(1,) * 3, (0.8,) * 3, (0.3,) * 3, (0.01,) * 3, (1,) * 3]),
        ("fall on one rank after the other", [2, 20, 8], _EACH),
        ("are exactly `good` in epoch 2", [4, 2, 2], [(1, 1, 1), (0.5,) * 3, (0.25,) * 3, (0.125,) * 3]),
        ("are of no samples on a rank", [6, 0, 4], [(1, 0, 1), (0.6, 0, 0.6), (0.4, 0, 0.4), (0.1, 0, 0.1)]),
        ("are nan, and then never good", [3, 4, 5], [(math.nan,) * 3, (0.6,) * 3]),
        ("are good at once", [3, 4, 5], [(0.2,) * 3, (0.1,) * 3]),
    )
]


def play(case: dict[str, Any], train_until: Callable[..., Any]) -> dict[str, Any]:
    rank, most, log = dist.get_rank() % 3, len(case["means"]), ""

    def train_epoch() -> None:
        nonlocal log
        log += "t"
        seen.mark()
        dist.all_reduce(torch.ones(3))  # the gradients
        seen.mark()

    def validate() -> tuple[float, int]:
        nonlocal log
        log += "v"
        epoch = log.count("t")
        refuse(not 0 < epoch <= most, "validate() is called before an epoch was trained, or after more than `most`")
        return float(case["means"][epoch - 1][rank] * case["samples"][rank]), case["samples"][rank]

    words = "The ranks do not stop after the same epoch, or do not ask each other the same: whatever decides must be "
    with explained(words + "the same number on all ranks"), watched() as seen:
        returned = train_until(most, case["good"], train_epoch, validate)
    epochs, own = log.count("t"), [call for call in seen.calls if call["ready"] % 2 == 0]
    words = "train_epoch() and validate() are not called in turn, once each in an epoch"
    refuse(log != "tv" * epochs, words, measured=log[:8], expected="tvtv…")
    words = "more than 2 collectives in an epoch decide whether it was the last: a sum and a number fit into one tensor"
    refuse(len(own) > 2 * epochs, words, measured=len(own), expected=f"at most {2 * epochs} in {epochs} epochs")
    largest = max([call["bytes"] for call in own], default=0)
    words = "a collective is given more bytes than a decision needs: a sum and a number fit into one tensor of two"
    refuse(largest > 16, words, measured=largest, expected="at most 16")
    returned = returned.item() if isinstance(returned, torch.Tensor) else returned
    return {"the epochs that were trained": epochs, "the number that comes back": returned}
