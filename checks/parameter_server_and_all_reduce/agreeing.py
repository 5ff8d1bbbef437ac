"""Exercise 1: ``check_length(tensor)`` raises on every rank if one tensor is longer than another."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.parameter_server_and_all_reduce import ring_messages

INT64 = 8  # bytes
TYPES = ("float32", "float64", "int64", "uint8", "bool")


def draw(rng: random.Random) -> list[Case]:
    return [
        {"ranks": ranks, "lengths": str(lengths), "type": rng.choice(TYPES), "strided": rng.random() < 0.5}
        | {"seed": rng.getrandbits(30)}
        for ranks in (rng.choice((4, 5)), rng.choice((2, 3)), 1)
        for lengths in (_lengths(rng, ranks) if ranks > 1 else [[rng.randint(0, 9)]])
    ]


def _lengths(rng: random.Random, ranks: int) -> list[list[int]]:
    """Equal ones, one that differs, two around the mean, one or all empty, two halves, a difference of 65,536, all."""
    usual, one = rng.randint(3, 9), rng.randrange(ranks)
    same = [usual] * ranks
    other, mean, far = same.copy(), same.copy(), same.copy()
    other[one] += rng.choice((-1, 1))
    mean[one], mean[one - 1] = usual - 2, usual + 2
    far[one] += 2**16
    halves = [usual + (rank >= ranks // 2) for rank in range(ranks)]
    empty = [0 if rank == one else usual for rank in range(ranks)]
    return [
        same,
        other,
        mean,
        empty,
        [0] * ranks,
        halves,
        far,
        rng.sample(range(12), ranks),
        [rng.randint(300, 999)] * ranks,
    ]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist

    length, dtype = _numbers(case)[dist.get_rank()], getattr(torch, case["type"])
    tensor = torch.arange(2 * length).to(dtype)[:: 2 if case["strided"] else 1][:length]
    facts["caught"] = watch.attempt("check_length", tensor=tensor)
    facts["messages"] = ring_messages.messages(watch.records[-1])


def _numbers(case: Case) -> list[int]:
    return [int(one) for one in case["lengths"].strip("[]").split(",")]


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    lengths = _numbers(case)
    equal, raise_it = len(set(lengths)) == 1, [rank for rank, facts in enumerate(world) if facts["caught"]]
    if not equal and len(raise_it) < len(world):
        words = "not every rank raises an error: those that do not would wait in the all-reduce for those that do"
        yield Broken("value:silent", words, f"ranks {raise_it} raise", "all ranks raise")
    for rank, facts in enumerate(world):
        if caught := facts["caught"]:
            text = caught["text"]
            if equal:
                words = f"it raises {caught['kinds'][0]} ({text[:80]}) though all lengths are equal"
                yield Broken("value:complains", words, rank=rank)
            elif "ValueError" not in caught["kinds"]:
                words = f"{caught['sentence'].rstrip('.')}: raise ValueError, so that a caller can tell it from others"
                yield Broken("value:kind", words, rank=rank)
            elif str(lengths) not in text:
                words = "the error's text should hold the lengths of all ranks, rank 0 first"
                yield Broken("value:text", words, repr(text[:80]), f"{lengths} in it", rank=rank)
        for name, _, nbytes, _ in facts["messages"]:
            if name == "send" and nbytes != INT64:
                words = f"it sends {'more' if nbytes > INT64 else 'less'} than a number: a length is one int64"
                yield Broken("value:large", words, f"a message of {nbytes} bytes", f"{INT64} bytes", rank=rank)
                break
    yield from ring_messages.judge_direction(world)


def _wire(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
    steps, ranks = case["ranks"] - 1, case["ranks"]
    return {
        "send": Amount(steps, steps * INT64, peer=(rank + 1) % ranks),
        "recv": Amount(steps, steps * INT64, peer=(rank - 1) % ranks),
    } if steps else {}  # fmt: skip


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    refused = sum(len(set(_numbers(case))) > 1 for case, _ in played)
    return {"world sizes": ring_messages.worlds_in(played), "unequal lengths refused on every rank": refused}


CONTRACT = Contract(
    name="parameter_server_and_all_reduce.lengths",
    rules={"check_length": Rules(wire=_wire, same_calls=False)},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *ring_messages.FIRST,
        ("wire:alone", "{}. First all ranks learn all lengths, then all of them raise, or none"),
        *ring_messages.MESSAGES,
        ("value:large", "{}"),
        ("wire:more send", "{}: after N − 1 steps every number has been everywhere"),
        ("value:*", "{}"),
    ),
    figures=figures,
)
