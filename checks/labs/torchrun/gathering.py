"""Check of ``gather_all``: parts of different length, on every rank, in two collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, leaves, refuse, watched
from checks.engine.plain import kind_of
from checks.engine.watching import at_most, explained, messages

CUT, PADDED = "[part[:length] for", "torch.zeros(max(lengths), dtype=torch.int64)"
MARK = "any number may be a prediction, so none can mark padding"
OFFICIAL = Reference("torchrun", "gather_all", {
    "the padding is still in it: cut each part to its own length": {CUT: "[part for"},
    "all parts are cut to the shortest one: predictions are lost": {CUT: "[part[:min(lengths)] for"},
    "all parts are cut to this rank's own length": {CUT: "[part[:len(predictions)] for"},
    f"predictions of 0 are lost: {MARK}": {CUT: "[part[part != 0] for"},
    f"predictions of -1 are lost: {MARK}":
        {PADDED: "torch.full((int(max(lengths)),), -1)", CUT: "[part[part != -1] for"},
    "digits are lost on the way: an int64 has more of them than floating point, so gather int64":
        {PADDED: "torch.zeros(max(lengths), dtype=torch.float64)", CUT: "[part[:length].long() for"},
    "only rank 0 gets the predictions: every rank needs them":
        {"strict=True)])": "strict=True)]) if dist.get_rank() == 0 else torch.empty(0, dtype=torch.int64)"},
})  # fmt: skip
LENGTHS = [[4] * 4, [6, 5, 4, 3], [2, 9, 3, 4], [5, 0, 3, 7], [0] * 4, [0, 300, 2, 1], [600] * 4]
CASES = [{"lengths": lengths} for lengths in LENGTHS]


def _part(length: int, rank: int, call: int) -> torch.Tensor:
    """Any whole numbers, also 0 and -1, and all digits of an int64."""
    numbers = torch.tensor([2**62 + 1 + rank, 0, -1, -(2**63), 17 + rank, 2**63 - 1 - call, 1000 * rank])
    return numbers.repeat(100)[:length].clone()


@exercise(OFFICIAL, CASES, title="The predictions of all", difficulty=2, minutes=20, ranks=(3, 4, 1))
def different_lengths(case: dict[str, Any], gather_all: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``gather_all(predictions)``, in two calls."""
    longest, gathered = max(case["lengths"][: dist.get_world_size()]), []
    for call in range(2):
        predictions = _part(case["lengths"][dist.get_rank()], dist.get_rank(), call)
        words = "With tensors of different length gloo itself gives up: what must the ranks know first?"
        with explained(words), leaves(predictions=predictions), watched() as seen:
            gathered.append(gather_all(predictions))
        strange = not isinstance(gathered[-1], torch.Tensor)
        refuse(strange, "gather_all returns one tensor", measured=kind_of(gathered[-1]))
        refuse(messages(seen.calls), "sends messages to single ranks: collectives are enough")
        why = "lengths first, then all parts at once, each padded to the longest and no further"
        at_most(seen.calls, 2, 16 * longest + 1_000, why)
    return {"the predictions of all, in each call": gathered}
