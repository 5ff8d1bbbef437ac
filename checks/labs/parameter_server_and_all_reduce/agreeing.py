"""Check of ``check_length``: all ranks learn all lengths by a ring, and all of them raise, or none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, leaves, refuse, watched
from checks.engine.inside import Outcome
from checks.engine.watching import messages, waits
from checks.labs.parameter_server_and_all_reduce.summing import to_the_right

DIFFER = "len(set(everyone)) > 1"
OFFICIAL = Reference("parameter_server_and_all_reduce", "check_length", {
    "not every rank raises an error: rank 0 alone does, and the others would wait for it":
        {DIFFER: DIFFER + " and rank == 0"},
    "not every rank raises an error: each compares its own length with its left neighbour's only":
        {DIFFER: "everyone[rank] != everyone[rank - 1]"},
    "the error's text should hold the lengths of all ranks, rank 0 first: this list begins with the rank's own":
        {"{everyone}": "{everyone[rank:] + everyone[:rank]}"},
})  # fmt: skip
_LENGTHS = [[5, 5, 5, 5], [5, 5, 7, 5], [3, 3, 3, 3], [4, 8, 6, 6], [6, 0, 6, 6], [0, 0, 0, 0], [4, 4, 5, 5],
            [7, 65_543, 7, 7], [9, 2, 4, 6]]  # fmt: skip
CASES = [{"lengths": one, "type": ("float32", "int64", "bool")[i % 3]} for i, one in enumerate(_LENGTHS)]


@exercise(OFFICIAL, CASES, title="Agree on the length", difficulty=1, minutes=15, ranks=(4, 3, 1))
def lengths(case: dict[str, Any], check_length: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``check_length(tensor)``, which raises ValueError on all ranks if their lengths differ."""
    error: BaseException | None = None
    ranks, lengths = dist.get_world_size(), case["lengths"][: dist.get_world_size()]
    tensor = torch.arange(lengths[dist.get_rank()]).to(getattr(torch, case["type"]))
    with leaves(tensor=tensor), watched(allowed=("send", "recv")) as seen:
        try:
            check_length(tensor)
        except ValueError as own:  # the official solution's
            error = own
        except Outcome as outcome:
            error = outcome.__cause__  # (what the check itself raises has none)
            if not isinstance(error, Exception) or outcome.record["kind"] != "wrong":
                raise
    sent = messages(seen.calls)
    to_the_right(sent)
    fault = "sends other messages than N − 1 of one int64, 8 bytes: then every length has been everywhere (in bytes)"
    told = [nbytes for _, nbytes in sent]
    refuse(told != [8] * (ranks - 1), fault, measured=told, expected=[8] * (ranks - 1))
    waits(seen.calls)
    numbers = lengths if str(lengths) in str(error) else [int(one) for one in re.findall(r"\d+", str(error))]
    return {"what comes": [f"a {type(error).__name__} with the numbers", *numbers] if error else "no error"}
