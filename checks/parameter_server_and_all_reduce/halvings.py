"""Exercise 3: ``halving_all_reduce(tensor)``, in place: recursive halving, then recursive doubling, for any world."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.parameter_server_and_all_reduce import ring_messages
from checks.parameter_server_and_all_reduce.ring_messages import sends_of

LARGEST = 8  # ranks: three rounds (traces have no digits for so many, so numbers are drawn there)


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks, few in {rng.choice((3, 5)): 2, 6: 6, LARGEST: 6, 1: 2}.items():  # (with 6, two ranks are beyond P)
        drawn = ring_messages.draw_tensors(rng, ranks, ranks > 1)[:few]
        for case in drawn:
            if ranks == LARGEST and case["type"] == "trace":
                case |= {"type": "int64", "length": case["length"] + LARGEST**2 * (case is drawn[0])}
            cases.append(case)
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    ring_messages.play(case, watch, facts, "halving_all_reduce")


def power_of(ranks: int) -> int:
    """The largest power of two that is not larger: so many ranks halve and double."""
    return 1 << (ranks.bit_length() - 1)


def _wire(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
    """2(P − 1)/P of the bytes in 2 log2 P messages, and a whole tensor for a rank that has none of these rounds."""
    if case["ranks"] == 1:
        return {}
    power, whole = power_of(case["ranks"]), case["length"] * ring_messages.item(case)
    rounds = power.bit_length() - 1 if rank < power else 0
    extra = rank >= power or rank + power < case["ranks"]
    target, around = extra * whole, 0
    if rounds:
        target += 2 * (power - 1) * whole // power
        around = 2 * rounds * _slack(case)
    amount = Amount(calls=2 * rounds + extra, bytes=target + around, least=max(0, target - around))
    return {"send": amount, "recv": amount}


def _slack(case: Case) -> int:
    """Bytes: halves may be cut at any of P chunks, and these differ by an element."""
    return power_of(case["ranks"]) * ring_messages.item(case)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    n, item, limits = len(world), ring_messages.item(case), []
    power, whole = power_of(n), case["length"] * item
    for rank, facts in enumerate(world):
        peers = [peer for peer, nbytes in sends_of(facts) if nbytes]
        if odd := [peer for peer in peers if peer not in _partners(rank, n)]:
            words = "a message goes to a rank that is none of its partners"
            yield Broken("value:1 partner", f"{words}, {_partners(rank, n)}", odd[0], rank=rank)
        elif rank >= power and whole and {"send", "recv"} - {name for name, *_ in facts["messages"]}:
            words = f"one way is missing: P is {power}, so this rank sends its tensor to rank {rank - power}, "
            words += "and gets the sum from there"
            yield Broken("value:1 beyond", words, rank=rank)
        elif rank < power:
            yield from _judge_rounds(case, rank, [one for one in sends_of(facts) if one[0] < power and one[1]])
        limits.append(whole if rank + power < n else whole // 2 + item + _slack(case))
    yield from ring_messages.judge_sum(case, world, workers=power)
    yield from ring_messages.judge_memory(
        case, world, limits, "half of it, all of it where one more rank sends its own"
    )


def _partners(rank: int, ranks: int) -> list[int]:
    power = power_of(ranks)
    if rank >= power:
        return [rank - power]
    rounds = [rank ^ (1 << bit) for bit in range(power.bit_length() - 1)]
    return rounds + [rank + power] * (rank + power < ranks)


def _judge_rounds(case: Case, rank: int, sent: list[tuple[int, int]]) -> Iterator[Broken]:
    """Of a rank's messages in the rounds: S/2, S/4, … and back, each partner once on either way."""
    power, whole, slack = power_of(case["ranks"]), case["length"] * ring_messages.item(case), _slack(case)
    rounds = power.bit_length() - 1
    due = [whole / 2 ** (one + 1) for one in range(rounds)]
    due += due[::-1]
    found = ", ".join(f"{nbytes:,} to rank {peer}" for peer, nbytes in sent)
    figures = {"measured": found, "expected": ", ".join(f"{nbytes:,.0f}" for nbytes in due), "rank": rank}
    if sent and max(nbytes for _, nbytes in sent) > due[0] + slack:
        words = "more than half of the tensor is sent in a round: keep one half, send the other one"
        yield Broken("value:0 whole", words, **figures)
    if case["length"] < power**2:  # (some halves may be empty, and nobody has to send these)
        return
    fits = len(sent) == len(due) and all(
        abs(nbytes - right) <= slack for (_, nbytes), right in zip(sent, due, strict=True)
    )
    if not fits:
        words = "the messages are not S/2, then S/4, … until each rank has finished its part, and the same way back"
        yield Broken("value:0 sizes", words, **figures)
    elif any(len({peer for peer, _ in way}) < rounds for way in (sent[:rounds], sent[rounds:])):
        yield Broken("value:1 partner", "one partner comes in two rounds on the same way", **figures)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, world = max(((case, world) for case, world in played), key=lambda one: (len(one[1]), one[0]["length"]))
    whole, sent = case["length"] * ring_messages.item(case), sends_of(world[0])
    return {
        "world sizes": ring_messages.worlds_in(played),
        "all-reduces": len(played),
        f"a rank of {case['ranks']} sends, for {whole:,} bytes": f"{sum(nbytes for _, nbytes in sent):,} bytes in "
        f"{len(sent)} messages",
        "memory": "the tensor and half of it",
    }


CONTRACT = Contract(
    name="parameter_server_and_all_reduce.halving",
    rules={"halving_all_reduce": Rules(changes=("tensor.value",), wire=_wire, same_calls=False)},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *(one for one in ring_messages.FIRST if one[0] != "wire:misfit"),
        ("wire:misfit", "{} half"),
        *(one for one in ring_messages.MESSAGES if one[0] != "wire:peer *"),
        ("value:[01] *", "{}"),
        ("wire:pieces *", "{}: one for each round on either way, and one with a rank that has no rounds"),
        ("value:*", "{}"),
        ("wire:more send", "{}: 2(P − 1)/P · S, P is the largest power of two up to the world size"),
        ("state:around*", "it writes beyond the ends of its tensor, where other numbers are"),
    ),
    figures=figures,
)
