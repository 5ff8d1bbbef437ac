"""Exercise 3: ``held_up_by(stacks)`` says which rank the others wait for, and in which line it is."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.failures_and_hangs.drawn_standstills import PROGRAM, drawn
from checks.plain import from_array, kind_of, number


def draw(rng: random.Random) -> list[Case]:
    return [{"ranks": 1, "launches": drawn(rng), "seed": 0}]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    facts["found"] = []
    for launch in case["launches"]:
        facts["found"].append(_plain(watch.call("held_up_by", stacks=list(launch["stacks"]))))


def _plain(found: Any) -> Any:
    """None, or a rank and a line; of other things their kind."""
    found = from_array(found)
    if found is None:
        return None
    pair = [number(one, whole=True) for one in found] if isinstance(found, tuple | list) and len(found) == 2 else [None]
    if None not in pair:
        return pair
    return kind_of(found)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first launch that was read wrongly."""
    for turn, (launch, found) in enumerate(zip(case["launches"], world[0]["found"], strict=False), start=1):
        if found == launch["right"]:
            continue
        if isinstance(found, str):
            words = f"held_up_by returns a rank and a line, two whole numbers, or None (launch {turn})"
            yield Broken("returns:", words, found)
        else:
            why = _why(launch["stacks"], found, launch["right"])
            yield Broken("value:rank", f"launch {turn}: {why}", str(found), str(launch["right"]))
        return


def _why(stacks: Sequence[str], found: Any, right: Any) -> str:
    """What was taken for the rank that holds up the others, or for its line."""
    if right is None:
        return "all ranks wait in the same line: none of them holds up the others"
    if found is None:
        return "one rank is not where the others are"
    rank, line = found
    if not 0 <= rank < len(stacks):
        return f"there is no rank {rank}"
    others, _, main = stacks[rank].partition("Current thread")
    if line in _lines(others) and line not in _lines(main):
        return f"line {line} is where another thread of rank {rank} is, and the main thread trains"
    if rank != right[0]:
        return f"rank {rank} waits where all ranks but one wait: it is held up itself"
    if line in _lines(main):
        return f"rank {rank} it is; line {line} has called what is going on, in another line of train.py"
    return f"rank {rank} it is, and no line {line} of train.py is in its stack"


def _lines(text: str) -> list[int]:
    return [int(line) for line in re.findall(rf'File "{PROGRAM}", line (\d+)', text)]


CONTRACT = Contract(
    name="failures_and_hangs.stacks",
    rules={"held_up_by": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("around:*", "{}"),
        ("returns:*", "{}"),
        ("value:*", "{}"),
        ("state:*", "held_up_by changes the list of stacks, and whoever calls it still needs them"),
    ),
    figures=lambda played: {
        "launches": len(played[0][0]["launches"]),
        "stacks": sum(len(launch["stacks"]) for launch in played[0][0]["launches"]),
    },
)
