"""Check of ``shift``: each rank's tensor goes to its right neighbour, once, and arrives as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, leaves, refuse, same, watched
from checks.engine.plain import kind_of
from checks.engine.watching import messages, waits

SEND = "    sending = dist.isend(tensor, (rank + 1) % world_size)\n"
RECV = "    dist.recv(received, (rank - 1) % world_size)\n"
OFFICIAL = Reference("torchrun", "shift", {
    "it goes the wrong way round: send to rank + 1, receive from rank - 1":
        {SEND: SEND.replace("+ 1", "- 1"), RECV: RECV.replace("- 1", "+ 1")},
    "each rank gets its own tensor back": {"    return received": "    return tensor.clone()"},
})  # fmt: skip
TYPES = {"float32": [4], "float64": [70_000], "int64": [], "bfloat16": [3, 2], "bool": [1, 2, 3], "uint8": [5]}
CASES = [{"shape": shape, "type": kind} for kind, shape in [*TYPES.items(), ("float32", [0])]]


def _tensor(case: dict[str, Any], rank: int, call: int) -> torch.Tensor:
    numbers = torch.arange(math.prod(case["shape"])) % 20 + 20 * rank + call
    return numbers.reshape(case["shape"]).to(getattr(torch, case["type"]))


@exercise(OFFICIAL, CASES, title="To the right neighbour", minutes=15, ranks=(4, 3, 2, 1))
def neighbours(case: dict[str, Any], shift: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``shift(tensor)``, in two calls."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shifted: list[Any] = []
    for call in range(2):
        tensor, arriving = (_tensor(case, source, call) for source in (rank, (rank - 1) % ranks))
        with leaves(tensor=tensor), watched() as seen:
            shifted.append(shift(tensor))
        refuse(not isinstance(shifted[-1], torch.Tensor), "shift returns a tensor", measured=kind_of(shifted[-1]))
        if not same(shifted[-1], arriving):
            continue  # it is told what is wrong with it
        fault = "what comes back shares its memory with the tensor that was given: whoever changes one changes both"
        shared = shifted[-1].untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        refuse(tensor.numel() and shared, fault)
        name = next((call["name"] for call in seen.calls if call["name"] not in ("send", "recv")), "")
        refuse(name, f"calls {name}: each rank has one tensor for one neighbour, and this moves more. Repair the order")
        waits(seen.calls)
        fault = "a rank does not send its tensor once, to rank + 1, in one message (in bytes, by receiver)"
        expected = [((rank + 1) % ranks, tensor.nbytes)] if ranks > 1 else []
        refuse(messages(seen.calls) != expected, fault, measured=str(messages(seen.calls)), expected=str(expected))
    return {"what comes back from each call": shifted}
