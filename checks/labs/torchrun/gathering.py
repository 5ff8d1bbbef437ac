"""Check of ``gather_all``: parts of different length, on every rank, in two collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, leaves, refuse, watched
from checks.engine.plain import kind_of
from checks.engine.watching import explained

CUT, RETURN = (
    "[part[:length] for",
    "    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])",
)
PADDED, MARK = (
    "torch.zeros(max(lengths), dtype=torch.int64)",
    "any number may be a prediction, so none can mark padding",
)
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
        {RETURN: RETURN + " if dist.get_rank() == 0 else torch.empty(0, dtype=torch.int64)"},
})  # fmt: skip
CASES = [
    {"lengths": lengths}
    for lengths in (
        [4, 4, 4, 4],
        [6, 5, 4, 3],
        [2, 9, 3, 4],
        [5, 0, 3, 7],
        [0, 0, 0, 0],
        [0, 300, 2, 1],
        [600, 600, 600, 600],
    )
]


def _part(case: dict[str, Any], rank: int, call: int) -> torch.Tensor:
    """Any whole numbers, also 0 and -1, and all digits of an int64."""
    generator = torch.Generator().manual_seed(100 * call + rank)
    numbers = torch.tensor([2**62 + 1 + rank, 0, -1, -(2**63), 17 + rank, 2**63 - 1 - call, 1000 * rank])
    length = case["lengths"][rank]
    return numbers[:length] if length <= 4 else numbers[torch.randint(len(numbers), (length,), generator=generator)]


def play(case: dict[str, Any], gather_all: Callable[..., Any]) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    longest, found = max(case["lengths"][:ranks]), []
    for call in range(2):
        mine = _part(case, rank, call)
        words = "With tensors of different length gloo itself gives up, and the process is gone: what must the ranks "
        with explained(words + "know first?"), leaves(predictions=mine), watched() as seen:
            got = gather_all(mine)
        words = "gather_all returns one tensor, on every rank"
        refuse(not isinstance(got, torch.Tensor), words, measured=kind_of(got))
        found.append((got, got.clone()))
        name = next((one["name"] for one in seen.calls if one["name"] in ("send", "recv")), "")
        refuse(name, f"calls {name}: collectives are enough")
        why = "lengths first, then all parts at once, each padded to the longest and no further"
        words = f"there are more than 2 collectives: {why}"
        refuse(len(seen.calls) > 2, words, measured=len(seen.calls), expected=2)
        largest, most = max([one["bytes"] for one in seen.calls], default=0), 16 * longest + 1_000
        words = f"a collective is given more bytes than a gather needs: {why}"
        refuse(largest > most, words, measured=largest, expected=f"at most {most}")
    words = "what came back from one call is overwritten by the next: it has to be a tensor of its own"
    refuse(not all(torch.equal(got, before) for got, before in found), words)
    return {"the predictions of all": [before for _, before in found]}
