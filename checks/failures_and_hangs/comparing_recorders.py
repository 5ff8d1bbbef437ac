"""Exercise 2: ``first_difference(dumps)`` finds where the ranks' flight recorders differ."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.failures_and_hangs.drawn_recorders import drawn
from checks.plain import from_array, number

WHAT = ("missing", "order", "operation", "size", "type")


def draw(rng: random.Random) -> list[Case]:
    return [{"ranks": 1, "launches": drawn(rng), "seed": 0}]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    facts["found"] = []
    for launch in case["launches"]:
        found = watch.call("first_difference", dumps=copy.deepcopy(launch["dumps"]))
        facts["found"].append(_plain(found))


def _plain(found: Any) -> Any:
    """None, or a number, a text, and sorted ranks; of other things their kind."""
    if found is None:
        return None
    if not isinstance(found, tuple | list) or len(found) != 3:
        return f"a {type(found).__name__}" + (f" of {len(found)}" if isinstance(found, tuple | list) else "")
    first, what, ranks = map(from_array, found)
    some = ranks if isinstance(ranks, tuple | list | set | frozenset) else [None]
    whole = [number(one, whole=True) for one in (first, *some)]
    if None in whole or not isinstance(what, str):
        return f"{type(first).__name__}, {type(what).__name__}, {type(ranks).__name__}"
    return [whole[0], what[:40], sorted(whole[1:])[:99]]


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first launch in which another difference was found."""
    for turn, (launch, found) in enumerate(zip(case["launches"], world[0]["found"], strict=False), start=1):
        right, seen = launch["right"], str(found)
        if isinstance(found, str):
            yield Broken(
                "returns:",
                f"first_difference returns a number, a text and a list of ranks, or None (launch {turn})",
                seen,
            )
        elif found != right:
            yield Broken("value:first", f"launch {turn}: {_why(launch['dumps'], found, right)}", seen, str(right))
        else:
            continue
        return


def _why(dumps: Sequence[Any], found: Any, right: Any) -> str:
    """What was taken for the first difference."""
    if right is None:
        return f"the ranks agree. Collective {found[0]}: {_reason(dumps, found[0], right)}"
    if found is None:
        return "there is a difference"
    if found[0] != right[0]:
        return f"collective {found[0]} is not the first in which they differ: {_reason(dumps, found[0], right)}"
    if found[1] != right[1]:
        known = "" if found[1] in WHAT else f" ({found[1]!r} is none of {', '.join(WHAT)})"
        return f"collective {right[0]} it is, and they differ in another way{known}"
    if set(found[2]) | set(right[2]) == set(range(len(dumps))) and not set(found[2]) & set(right[2]):
        done = (
            "have that number, the others have not" if right[1] == "missing" else "do what most do, the others differ"
        )
        return f"collective {right[0]} it is; these ranks {done}"
    return f"collective {right[0]} it is, and the list of ranks is another one"


def _reason(dumps: Sequence[Any], number: int, right: Any) -> str:
    numbers = [{one["collective_seq_id"] for one in dump["entries"] if not one["pg_id"]} for dump in dumps]
    if all(number not in of_rank for of_rank in numbers):
        return "no rank has that number; look for `collective_seq_id`"
    if number < max(map(min, numbers)):
        return "not all have a record of it any more: a recorder keeps the newest, and what it has lost was not missed"
    if right and number > right[0]:
        return "there is an earlier one"
    return "all do the same there. (The entries of another group have numbers of their own)"


CONTRACT = Contract(
    name="failures_and_hangs.flight_recorder",
    rules={"first_difference": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("around:*", "{}"),
        ("returns:*", "{}"),
        ("value:*", "{}"),
        ("state:*", "first_difference changes the dumps, and whoever calls it still needs them"),
    ),
    figures=lambda played: {
        "launches": len(played[0][0]["launches"]),
        "entries": sum(len(dump["entries"]) for one in played[0][0]["launches"] for dump in one["dumps"]),
    },
)
