"""Check of ``halving_all_reduce``: the sum in place, in S/2, S/4, … and back, with ranks beyond a power of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from checks.engine import Reference, exercise, refuse
from checks.labs.parameter_server_and_all_reduce import summing

PLACE = "    buffer = tensor.new_empty(len(tensor) if extra"
FIRST = "    rounds, part, distance = [], tensor, power // 2\n"
ADD = "        keep += buffer[: len(keep)]\n"
BACK = "        dist.recv(give, partner)\n        sending.wait()\n"
GIVE = "    if extra:\n        dist.send(tensor, rank + power)"
HOME = "        dist.recv(tensor, rank - power)\n"
OFFICIAL = Reference("parameter_server_and_all_reduce", "halving_all_reduce", {
    summing.RENAMED:
        {PLACE: "    tensor = tensor.clone()\n" + PLACE},
    summing.AVERAGE: {GIVE: "    tensor.copy_(tensor / size)\n" + GIVE},
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
    "the ranks from P on have not got the sum: it comes back at the end": {HOME: "", GIVE: ""},
    "the last elements are not added: the length does not divide evenly, and no part holds them":
        {FIRST: FIRST.replace("[], tensor,", "[], tensor[: len(tensor) // power * power],")},
    summing.INTEGERS:
        {"    if rank >= power:": "    given, tensor = tensor, tensor if tensor.is_floating_point() else "
         "tensor.double()\n    if rank >= power:", HOME: HOME + "        given.copy_(tensor)\n",
         GIVE: GIVE + "\n    given.copy_(tensor)"},
    summing.ROUNDED:
        {ADD: "        keep.copy_(keep.float() + buffer[: len(keep)].float() if keep.is_floating_point() else "
              "keep + buffer[: len(keep)])\n"},
})  # fmt: skip
CASES = summing.CASES[:5] + summing.CASES[-1:]


@exercise(OFFICIAL, CASES, title="Halving and doubling", difficulty=3, minutes=30, ranks=(8, 6, 1))
def halving(case: dict[str, Any], halving_all_reduce: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``halving_all_reduce(tensor)``: recursive halving and doubling, with ranks beyond a power of two."""
    rank, ranks, size = dist.get_rank(), dist.get_world_size(), summing.item(case)
    power, whole = 1 << (ranks.bit_length() - 1), case["length"] * size
    slack = power * size  # bytes: halves may be cut at any of P chunks
    extra = rank + power < ranks
    tensor, sent, held = summing.summed(case, halving_all_reduce)
    if held and ranks > 1:
        rounds = power.bit_length() - 1 if rank < power else 0
        partners = [rank ^ (1 << bit) for bit in range(rounds)] + [rank + power] * extra
        partners = partners or [rank - power]
        wrong = [peer for peer, nbytes in sent if nbytes and peer not in partners]
        words = f"a message goes to a rank that is none of rank {rank}'s partners, {partners}"
        refuse(wrong, words, measured=wrong and wrong[0])
        inside = [(peer, nbytes) for peer, nbytes in sent if peer < power and nbytes and rank < power]
        due = [whole / 2 ** (one + 1) for one in range(rounds)]
        due += due[::-1]
        told = ", ".join(f"{nbytes:,} to rank {peer}" for peer, nbytes in inside)
        figures = {"measured": told, "expected": ", ".join(f"{nbytes:,.0f}" for nbytes in due)}
        words = "more than half of the tensor is sent in a round: keep one half, send the other one"
        refuse(rounds and any(nbytes > whole / 2 + slack for _, nbytes in inside), words, **figures)
        if case["length"] >= power**2:  # (else some halves may be empty, and nobody has to send these)
            fits = len(inside) == len(due) and all(abs(a - b) <= slack for (_, a), b in zip(inside, due, strict=True))
            words = "the messages are not S/2, then S/4, … until each rank has finished its part, and the same way back"
            refuse(not fits, words, **figures)
            ways = inside[:rounds], inside[rounds:]
            words = "one partner comes in two rounds on the same way"
            refuse(any(len({peer for peer, _ in way}) < rounds for way in ways), words, **figures)
        others = len([peer for peer, nbytes in sent if nbytes]) - len(inside)
        refuse(others > 1, "a whole tensor is sent more than once", measured=others, expected=1)
        half = whole // 2 + size + slack
        summing.lean(held, *((whole, "a whole tensor") if extra else (half, "half of the tensor")))
    return {"the tensor": tensor}
