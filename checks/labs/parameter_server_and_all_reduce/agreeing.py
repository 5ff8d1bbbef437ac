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

DIFFER, LISTED = "len(set(everyone)) > 1", "{everyone}"
OFFICIAL = Reference("parameter_server_and_all_reduce", "check_length", {
    "an error comes also where all lengths are equal": {DIFFER: "everyone"},
    "not every rank raises an error: rank 0 alone does, and the others would wait for it":
        {DIFFER: DIFFER + " and rank == 0"},
    "not every rank raises an error: each compares its own length with its left neighbour's only":
        {DIFFER: "everyone[rank] != everyone[rank - 1]"},
    "not every rank raises an error: each compares its own length with the mean, or the sum":
        {DIFFER: "tensor.numel() * size != sum(everyone)"},
    "not every rank raises an error: an empty tensor has a length, too":
        {DIFFER: "len({one for one in everyone if one}) > 1"},
    "the error's text should hold the lengths of all ranks, rank 0 first: this list begins with the rank's own":
        {LISTED: "{everyone[rank:] + everyone[:rank]}"},
    "the error's text should hold the lengths of all ranks, rank 0 first: this list is the other way round":
        {LISTED: "{everyone[::-1]}"},
    "the error's text should hold the lengths of all ranks, and it has only the rank's own":
        {LISTED: "{everyone[rank]}"},
    "the error's text should hold the lengths of all ranks, and it has none": {LISTED: "others"},
    "lengths are counted by the numbers that are not 0": {"tensor.numel()": "int(tensor.count_nonzero())"},
})  # fmt: skip
_LENGTHS = [[5, 5, 5, 5], [5, 5, 7, 5], [3, 3, 3, 3], [4, 8, 6, 6], [6, 0, 6, 6], [0, 0, 0, 0], [4, 4, 5, 5],
            [7, 65_543, 7, 7], [9, 2, 4, 6]]  # fmt: skip
CASES = [
    {"lengths": lengths, "type": kind} for lengths, kind in zip(_LENGTHS, ["float32", "int64", "bool"] * 3, strict=True)
]


@exercise(OFFICIAL, CASES, title="Agree on the length", difficulty=1, minutes=15, ranks=(4, 3, 1))
def lengths(case: dict[str, Any], check_length: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``check_length(tensor)``, which raises ValueError on all ranks if their lengths differ."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    lengths = case["lengths"][:ranks]
    tensor = torch.arange(lengths[rank]).to(getattr(torch, case["type"]))
    try:
        with leaves(tensor=tensor), watched(allowed=("send", "recv")) as seen:
            error = _raised(check_length, tensor)
    except Outcome as outcome:
        if "for ever" in outcome.record["sentence"]:
            words = ". A rank may return, or raise, only when all lengths have gone round the ring"
            outcome.record["sentence"] = outcome.record["sentence"].rstrip(".") + words
        raise
    sent = messages(seen.calls)
    directed = ranks > 2 and {peer for peer, _ in sent} == {(rank - 1) % ranks}
    refuse(directed, "your ring runs to the left: rank r sends to rank r + 1")
    wrong = [peer for peer, _ in sent if peer != (rank + 1) % ranks]
    refuse(wrong, "a message goes to another rank than the next one in the ring", measured=wrong and wrong[0])
    words = "a message is not one number: a length is one int64, 8 bytes"
    refuse(
        any(nbytes != 8 for _, nbytes in sent), words, measured=sent and max(nbytes for _, nbytes in sent), expected=8
    )
    words = "sends other than N − 1 messages: then every number has been everywhere"
    refuse(len(sent) != ranks - 1, words, measured=len(sent), expected=ranks - 1)
    waits(seen.calls)
    words = f"raises {type(error).__name__}: raise ValueError, so that a caller can tell it from other errors"
    refuse(error and not isinstance(error, ValueError), words)
    numbers = lengths if str(lengths) in str(error) else [int(one) for one in re.findall(r"\d+", str(error))]
    return {"what comes": ["an error with the numbers", *numbers] if error else "no error"}


def _raised(function: Callable[..., Any], *arguments: Any) -> Exception | None:
    """What a learner's function raises; what the check itself raises ends the case."""
    try:
        function(*arguments)
    except Outcome as outcome:
        if isinstance(outcome.__cause__, Exception) and outcome.record["kind"] == "wrong":
            return outcome.__cause__
        raise
    except Exception as error:  # the official solution's
        return error
    return None
