"""What the programs of this lab may say to each other: any collective, so many, and of so many bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Facts

COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "reduce", "gather", "scatter", "reduce_scatter", "all_to_all")
THE_PROGRAMS = "the program's own"  # phase of the collectives that the check itself calls: a training's gradients
Call = tuple[str, int]  # its name and its bytes


def worlds(rng: random.Random) -> tuple[int, ...]:
    return 3, rng.choice((2, 4, 5)), 1


def any_collective(calls: int, nbytes: int, *more: str) -> dict[str, Amount]:
    """For ``Rules.wire``: the judge says how many are too many, for all kinds together."""
    return {name: Amount(calls, nbytes, least=0) for name in (*COLLECTIVES, *more)}


def calls_of(record: dict[str, Any]) -> list[Call]:
    """Of a step: what the answer has called."""
    return [(call["name"], call["bytes"]) for call in record.get("calls", ()) if call["phase"] != THE_PROGRAMS]


def judge_calls(facts: Facts, most: int, largest: int, what: str, why: str, rank: int) -> Iterator[Broken]:
    """At most so many calls, each of at most so many bytes."""
    calls = facts["calls"]
    if len(calls) > most:
        yield Broken("value:calls", f"there are more collectives than {what} needs: {why}", len(calls), most, rank)
    if too_large := [call for call in calls if call[1] > largest]:
        name, nbytes = too_large[0]
        words = f"{name} is given more bytes than {what} needs: {why}"
        yield Broken("value:bytes", words, f"{nbytes:,} bytes", f"at most {largest:,}", rank)


def world_sizes(played: Sequence[tuple[Case, Sequence[Facts]]]) -> str:
    return ", ".join(map(str, sorted({case["ranks"] for case, _ in played})))
