"""Check of ``ring_all_reduce``: the sum in place, N chunks, each message to the right and no larger than a chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from checks.engine import Reference, exercise, refuse
from checks.labs.parameter_server_and_all_reduce import summing

CUT = "    chunks = tensor.tensor_split(size)\n    buffer = torch.empty_like(chunks[0])"
ADD = "        target += buffer[: len(target)]\n"
GATHER = "    for step in range(size - 1):  # all-gather\n"
LAST = "        dist.recv(chunks[(rank - step) % size], left)\n        sending.wait()"
OFFICIAL = Reference("parameter_server_and_all_reduce", "ring_all_reduce", {
    **summing.mistakes(CUT, "size"),
    "the second phase adds once more: there it only overwrites":
        {LAST: "        target = chunks[(rank - step) % size]\n        dist.recv(buffer[: len(target)], left)\n"
               "        sending.wait()\n" + ADD.rstrip()},
    "the second phase is missing: each rank has finished one chunk only": {"range(size - 1):  # all": "():  # all"},
    "the second phase is too short: it takes N − 1 steps": {"range(size - 1):  # all": "range(size - 2):  # all"},
    "the first phase is too short: it takes N − 1 steps":
        {"range(size - 1):  # reduce": "range(size - 2):  # reduce"},
    "the second phase hands out chunks of one rank's numbers: after the first, rank r has finished chunk r + 1":
        {"chunks[(rank - step + 1) % size], right": "chunks[(rank - step) % size], right",
         "dist.recv(chunks[(rank - step) % size]": "dist.recv(chunks[(rank - step - 1) % size]"},
    "what comes is added to another chunk than the one it is: in a step, rank r receives what rank r − 1 sends":
        {"(rank - step - 1) % size": "(rank - step + 1) % size"},
    "the last elements are not added: the length does not divide evenly, and no chunk holds them":
        {"tensor.tensor_split(size)": "tensor[: len(tensor) // size * size].tensor_split(size)"},
})  # fmt: skip
CASES = summing.CASES


@exercise(OFFICIAL, CASES, title="Ring all-reduce", difficulty=2, minutes=30, ranks=(5, 2, 1))
def ring(case: dict[str, Any], ring_all_reduce: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``ring_all_reduce(tensor)``, which works in place and by send and recv only."""
    ranks = dist.get_world_size()
    tensor, sent, held = summing.summed(case, ring_all_reduce)
    if held:
        chunk = -(-len(tensor) // ranks) * tensor.itemsize
        summing.to_the_right(sent)
        largest = max([nbytes for _, nbytes in sent], default=0)
        whole = "the whole tensor is sent" if largest == tensor.nbytes else "more than a chunk of S/N is sent"
        refuse(largest > chunk, f"{whole} in one message (in bytes)", measured=largest, expected=f"at most {chunk}")
        fault = "sends more messages than a ring needs"
        refuse(len(sent) > 2 * (ranks - 1), fault, measured=len(sent), expected=2 * (ranks - 1))
        summing.lean(case, held, chunk, "one chunk of S/N")
    return {"the tensor": tensor}
