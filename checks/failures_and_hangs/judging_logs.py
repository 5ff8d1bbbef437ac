"""Exercise 1: ``judge_log(log)`` says which rank is to blame, and what happened to it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.failures_and_hangs.drawn_logs import Log, drawn, stored
from checks.plain import kind_of, number


def draw(rng: random.Random) -> list[Case]:
    return [{"ranks": 1, "logs": [*stored(), *drawn(rng)], "seed": 0}]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    facts["verdicts"] = []
    for log in case["logs"]:
        facts["verdicts"].append(_plain(watch.call("judge_log", log=log["text"])))


def _plain(found: Any) -> Any:
    """A pair of a rank and a text; of other things their kind."""
    pair = isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[1], str)
    if pair and (rank := number(found[0], whole=True)) is not None:
        return [rank, found[1][:80]]
    return kind_of(found)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first log that is judged wrongly. What the five stored ones have is not given away."""
    for log, found in zip(case["logs"], world[0]["verdicts"], strict=False):
        if isinstance(found, str):
            words = f"judge_log returns a pair of a rank, a whole number, and a text ({log['name']})"
            yield Broken("returns:", words, found)
            return
        rank, what = found
        if (rank, what.rpartition(".")[2]) == (log["rank"], log["what"].rpartition(".")[2]):
            continue
        right = (log["rank"], log["what"]) if log["name"].startswith("drawn") else None
        yield Broken("value:log", f"{log['name']}: {_why(log, rank, what)}", (rank, what), right and str(right))
        return


def _why(log: Log, rank: int, what: str) -> str:
    """What this verdict has taken for the cause."""
    text, words = log["text"], _first_words(log["text"], rank)
    if f"  rank      : {rank} " not in text:
        return f"there is no rank {rank}"
    if what == "SIGTERM" and re.search(rf"rank      : {rank} .*\n.*SIGTERM", text):
        return f"SIGTERM is how torchrun stops who is left, rank {rank} too: it is no cause"
    if rank == log["rank"]:
        if what != words.partition(":")[0] and f"\n[rank{rank}]: {what}:" in text:
            return f"rank {rank} it is; its first exception is the cause, and what follows it is not"
        if log["what"].rpartition(".")[2].lower() in what.lower():
            return f"rank {rank} it is; give the name alone, spelled as in the log or in the table"
        if what == "missing":
            return f"rank {rank} it is, and the log says more of it than that it has not come"
        return f"rank {rank} it is, and that is not what happened to it"
    if "Watchdog caught" in text:
        if log["what"] == "missing":
            return f"rank {rank} has come to this collective and waits in it: who has not come?"
        return f"rank {rank} calls what most of the others call"
    if "Detected mismatch" in words:
        return f"rank {rank} calls what most of the others call"
    if re.search(r"Timed out|Connection (closed|reset)", words):
        also = ", though torchrun saw it fail first" if rank == log["first"] else ""
        return f"rank {rank} is a witness{also}: its first words are about the time or the connection"
    return f"rank {rank} was stopped by torchrun, after another one had failed"


def _first_words(text: str, rank: int) -> str:
    """How the first exception of a rank is told."""
    found = re.search(rf"^\[rank{rank}\]: ([\w.]+(?::.*)?)$", text, re.MULTILINE)
    return found[1] if found else ""


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    logs = played[0][0]["logs"]
    return {"logs": len(logs), "lines": sum(log["text"].count("\n") for log in logs)}


CONTRACT = Contract(
    name="failures_and_hangs.raw_logs",
    rules={"judge_log": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(("around:*", "{}"), ("returns:*", "{}"), ("value:*", "{}")),
    figures=figures,
)
