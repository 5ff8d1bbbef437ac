"""Check of ``halving_all_reduce``: the sum in place, in S/2, S/4, … and back, with ranks beyond a power of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from checks.engine import Reference, exercise, refuse
from checks.labs.parameter_server_and_all_reduce import summing

FIRST = "    rounds, part, distance = [], tensor, power // 2\n"
ADD = "        keep += buffer[: len(keep)]\n"
BACK = "        dist.recv(give, partner)\n        sending.wait()\n"
OFFICIAL = Reference("parameter_server_and_all_reduce", "halving_all_reduce", {
    **summing.mistakes("    if rank >= power:", "size"),
    "the way back is missing: each rank has finished its own part only": {"reversed(rounds)": "()"},
    "the way back takes the rounds in the order of the way there: go through them backwards":
        {"reversed(rounds)": "rounds"},
    "the way back adds once more: there a rank only overwrites the half that it gave":
        {BACK: "        dist.recv(buffer[: len(give)], partner)\n        sending.wait()\n"
               "        give += buffer[: len(give)]\n"},
    "on the way back the half that is finished is the one that a rank has kept, not the one that it gave":
        {"dist.isend(keep, partner)": "dist.isend(give, partner)",
         "dist.recv(give, partner)": "dist.recv(keep, partner)"},
    "both partners keep the same half: one of them keeps the lower, the other one the upper half":
        {"halves if rank < partner else halves[::-1]": "halves"},
    "what comes overwrites the half that is kept: add it": {ADD: "        keep.copy_(buffer[: len(keep)])\n"},
    "the numbers of the ranks from P on are missing: rank r − P adds them first": {"        tensor += buffer\n": ""},
    "the last elements are not added: the length does not divide evenly, and no part holds them":
        {FIRST: FIRST.replace("[], tensor,", "[], tensor[: len(tensor) // power * power],")},
})  # fmt: skip
CASES = summing.CASES[:5] + summing.CASES[-1:]


@exercise(OFFICIAL, CASES, title="Halving and doubling", difficulty=3, minutes=30, ranks=(8, 6, 1))
def halving(case: dict[str, Any], halving_all_reduce: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``halving_all_reduce(tensor)``: recursive halving and doubling, with ranks beyond a power of two."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor, sent, held = summing.summed(case, halving_all_reduce)
    power, whole = 1 << (ranks.bit_length() - 1), tensor.nbytes
    slack = power * tensor.itemsize  # halves may be cut at any of P chunks
    if held and ranks > 1:
        rounds = power.bit_length() - 1 if rank < power else 0
        partners = {rank ^ (1 << bit) for bit in range(rounds)}
        inside = [(peer, nbytes) for peer, nbytes in sent if nbytes and peer in partners]
        others = [(peer, nbytes) for peer, nbytes in sent if nbytes and peer not in partners]
        extra = [(peer, whole) for peer in (rank - power, rank + power) if whole and 0 <= peer < ranks]
        fault = f"rank {rank}, whose partners in the rounds are {sorted(partners)}, sends something else to others"
        refuse(others != extra, f"{fault} than what goes between ranks r and r − P", measured=others, expected=extra)
        due = [whole / 2 ** (number + 1) for number in range(rounds)]
        due += due[::-1]
        figures = {"measured": inside, "expected": [round(nbytes) for nbytes in due]}
        fault = "more than half of the tensor is sent in a round: keep one half, send the other one (to whom, bytes)"
        refuse(any(nbytes > whole / 2 + slack for _, nbytes in inside), fault, **figures)
        if len(tensor) >= power**2:  # (else some halves may be empty, and nobody has to send these)
            fits = len(inside) == len(due) and all(abs(a - b) <= slack for (_, a), b in zip(inside, due, strict=True))
            fits = fits and {peer for peer, _ in inside[:rounds]} == {peer for peer, _ in inside[rounds:]} == partners
            fault = "the messages are not S/2, S/4, … to each partner, and the same way back (to whom, bytes)"
            refuse(not fits, fault, **figures)
        half = whole // 2 + tensor.itemsize + slack
        limit, fault = (whole, "a whole tensor") if extra and rank < power else (half, "half of the tensor")
        summing.lean(case, held, limit, fault)
    return {"the tensor": tensor}
