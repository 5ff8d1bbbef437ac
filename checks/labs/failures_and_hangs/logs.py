"""Check of ``judge_log``: five logs that are stored, and others that are drawn from their lines."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, refuse
from checks.engine.plain import number, shorten
from checks.labs.failures_and_hangs import launches

FIRST, NAME = "errors.setdefault(int(rank), (name, words))", r"([\w.]+)(?:: (.*))?$"
OFFICIAL = Reference("failures_and_hangs", "judge_log", {
    "the first exception of a rank is the cause, and what follows it is not":
        {FIRST: "errors[int(rank)] = name, words", "Connection (c": "Parent directory|Connection (c"},
    "an exception's name need not end in Error": {NAME: NAME.replace("+)", "+Error)")},
    "an exception's name may have a dot in it": {NAME: NAME.replace(r"[\w.]", r"\w")},
    "an exception may have no words behind its name": {NAME: "([\\w.]+): (.*)$"},
    "a rank may be ended by other signals than the usual three": {r"SIG(?!TERM)\w+": "SIG(KILL|SEGV|ABRT)"},
    "a rank that a signal has ended is not missing": {r"SIG(?!TERM)\w+": r"SIG(?!\w)"},
    "ranks may call the same operation with another size":
        {"NumelOut": "NumelIn", r"(OpType.*?\])": "(OpType.*?),", 'pop(), "missing"\n        u': 'pop(), "missing"\n'
         '        if len(set(calls.values())) == 1:\n            return 0, "mismatch"\n        u'},
    "in a mismatch most ranks are right, and not always rank 0":
        {"usual = Counter(calls.values()).most_common(1)[0][0]": "usual = calls[0]"},
    "an error of a rank's own may speak of time, or of something that is closed: yours takes its rank for a witness":
        {"Timed out|Connection (closed|reset)": "(?i)time|connect|closed|reset"},
    "a RuntimeError may be a rank's own error":
        {', words):\n': ', words) and name != "RuntimeError":\n'},
})  # fmt: skip
WITNESS = r"Timed out waiting|Connection (closed|reset) by peer"


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    stored = [*launches.BLAMED]
    if number < len(stored):
        return {"log": stored[number], "text": launches.stored(stored[number])}
    return {"log": f"check.drawn_log({number})", "text": launches.log_of(rng, number - len(stored))}


def play(case: dict[str, Any], judge_log: Callable[..., Any]) -> dict[str, Any]:
    log = case["text"]
    result = judge_log(log)
    pair = isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], str)
    fine = pair and number(result[0], whole=True) is not None
    refuse(not fine, "the result is not a pair: a rank, which is a whole number, and a text", measured=shorten(result))
    rank, what = result
    refuse(what == "SIGTERM", f"SIGTERM is how torchrun stops who is left, rank {rank} too: it is no cause")
    said = re.findall(rf"^\[rank{rank}\]: (?:[\w.]+: )(.*)$", log, re.MULTILINE)
    words = f"rank {rank} is a witness: its first error is about the time or the connection"
    refuse(said and re.search(WITNESS, said[0]), words, measured=what)
    words = f"rank {rank} has come to the collective, and waits in it or was ended there: look at what the ranks call"
    refuse(f"[Rank {rank}] Watchdog" in log and what != "mismatch", words, measured=what)
    return {"the rank": rank, "what happened to it": what.rpartition(".")[2]}
