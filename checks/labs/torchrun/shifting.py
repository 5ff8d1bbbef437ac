"""Check of ``shift``: each rank's tensor goes to its right neighbour, once, and arrives as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, leaves, refuse, same, watched
from checks.engine.inside import Outcome
from checks.engine.plain import kind_of
from checks.engine.watching import messages, waits

SEND = "    sending = dist.isend(tensor, (rank + 1) % world_size)\n"
RECV = "    dist.recv(received, (rank - 1) % world_size)\n"
WAIT = "    sending.wait()\n"
OFFICIAL = Reference("torchrun", "shift", {
    "it goes the wrong way round: send to rank + 1, receive from rank - 1":
        {SEND: SEND.replace("+ 1", "- 1"), RECV: RECV.replace("- 1", "+ 1")},
    "each rank gets its own tensor back: nothing is exchanged": {SEND + RECV + WAIT: "    received = tensor.clone()\n"},
    "what comes back is always float32: the data type is that of the tensor":
        {"    sending.wait()\n    return received": "    sending.wait()\n    return received.float()"},
})  # fmt: skip
CASES = [
    {"shape": shape, "type": kind}
    for shape, kind in (
        ([4], "float32"),
        ([70_000], "float64"),
        ([], "int64"),
        ([0], "float32"),
        ([3, 2], "bfloat16"),
        ([1, 2, 3], "bool"),
        ([5], "uint8"),
    )
]


def _tensor(case: dict[str, Any], rank: int, call: int) -> torch.Tensor:
    """Two ranks differ, and an int64 has more digits than a float64 holds."""
    kind = getattr(torch, case["type"])
    place = torch.arange(torch.Size(case["shape"]).numel()).reshape(case["shape"])
    if kind is torch.bool:
        return (place + rank) % 3 == call
    if kind is torch.int64:
        return 2**62 + 1 + place + 10 * rank + call
    return (place % 20 + 20 * (rank % 4) + call).to(kind)


def play(case: dict[str, Any], shift: Callable[..., Any]) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = []
    for call in range(2):
        tensor, right = (_tensor(case, one, call) for one in (rank, (rank - 1) % ranks))
        try:
            with leaves(tensor=tensor), watched() as seen:
                got = shift(tensor)
        except Outcome as outcome:
            if "itself" in outcome.record["sentence"]:
                outcome.record["sentence"] += ": with one rank, both neighbours are that rank. Make a copy"
            raise
        refuse(not isinstance(got, torch.Tensor), "shift returns a tensor", measured=kind_of(got))
        found.append((got, got.clone()))
        if same(got, right):  # (else it is told what is wrong with it)
            _traffic(seen.calls, tensor, got)
    words = "what came back from one call is overwritten by the next: it has to be a tensor of its own"
    refuse(not all(same(got, before) for got, before in found), words)
    return {"what comes back": [before for _, before in found]}


def _traffic(calls: list[dict[str, Any]], tensor: torch.Tensor, got: torch.Tensor) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    words = "what comes back shares its memory with the tensor that was given: whoever changes one changes both"
    refuse(tensor.numel() and got.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr(), words)
    name = next((call["name"] for call in calls if call["name"] not in ("send", "recv")), "")
    words = f"calls {name}: each rank has one tensor for one neighbour, and this moves more. Repair the order"
    refuse(name, words)
    waits(calls)
    words = "a rank does not send its tensor once, to rank + 1, in one message (in bytes, by receiver)"
    expected = [((rank + 1) % ranks, tensor.nbytes)] if ranks > 1 else []
    refuse(messages(calls) != expected, words, measured=str(messages(calls)), expected=str(expected))
