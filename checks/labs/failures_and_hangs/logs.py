"""Check of ``judge_log``: five logs that are stored, and others that are made of their lines.

Logs a to d were printed by torch 2.13 under gloo. NCCL was not run here: e has the form of reports from 2025.
"""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.judging import drawn
from checks.engine.plain import number, shorten
from course import outline

FIRST, NAME = "errors.setdefault(int(rank), (name, words))", r"([\w.]+)(?:: (.*))?$"
OFFICIAL = Reference("failures_and_hangs", "judge_log", {
    "the first exception of a rank is the cause, and what follows it is not":
        {FIRST: "errors[int(rank)] = name, words", "Connection (c": "Parent directory|Connection (c"},
    "an exception's name need not end in Error": {NAME: NAME.replace("+)", "+Error)")},
    "an exception's name may have a dot in it": {NAME: NAME.replace(r"[\w.]", r"\w")},
    "an exception may have no words behind its name": {NAME: "([\\w.]+): (.*)$"},
    "a rank may be ended by other signals than the usual three": {r"SIG(?!TERM)\w+": "SIG(KILL|SEGV|ABRT)"},
    "a rank that a signal has ended is not missing": {r"SIG(?!TERM)\w+": r"SIG(?!\w)"},
    "in a mismatch most ranks are right, and not always rank 0":
        {"usual = Counter(calls.values()).most_common(1)[0][0]": "usual = calls[0]"},
    "an error of a rank's own may speak of time, or of something that is closed: yours takes its rank for a witness":
        {"Timed out|Connection (closed|reset)": "(?i)time|connect|closed|reset"},
    "a RuntimeError may be a rank's own error": {', words):\n': ', words) and name != "RuntimeError":\n'},
})  # fmt: skip
FOLDER = outline.FILES / "scripts" / "failures" / "logs"
BLAMED = {"a": 1, "b": 2, "c": 2, "d": 1, "e": 0}  # each stored log, and the rank to blame
KINDS = "abcdeaE"  # E: under NCCL, the rank has called something else
ERRORS = (
    "RuntimeError: time step 3 is missing", "ValueError: I/O operation on closed file.", "queue.Empty",
    "AssertionError", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
)  # fmt: skip
SIGNALS, TERM = (9, 11, 6, 7, 8), -15
CAUSE = "The above exception was the direct cause of the following exception:"
CLOSING = "W1123 06:11:27 21947 torch/distributed/elastic/multiprocessing/api.py] Sending process {} closing signal "
SEE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
REPORT = """[{0}]:
  time      : 2026-11-23_06:11:27
  host      : localhost
  rank      : {1} (local_rank: {1})
  exitcode  : {2} (pid: {3}) {4}
  error_file: <N/A>
  traceback : {5}"""


def _stored(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """The stored logs, and then others of the same kinds, with other ranks and another fault."""
    if number < len(BLAMED):
        return {"log": "abcde"[number], "text": _stored("abcde"[number])}
    again, place = divmod(number - len(BLAMED), len(KINDS))
    kind, world = KINDS[place].lower(), rng.randint(3, 8)
    text, bad = _stored(kind), (0, world - 1, rng.randrange(world))[min(again, 2)]
    if kind == "d":  # another operation, or another size
        change = ("ALLREDUCE, TensorShape=[744]", "BROADCAST, TensorShape=[744]") if again % 2 else ("744", "5744")
        text = text.replace(*change)
    first = rng.choice([rank for rank in range(world) if rank != bad or kind == "b"])  # that torchrun sees
    ends = [rng.choice((-6 if kind == "e" else 1, TERM)) for _ in range(world)]
    ends[first] = -6 if kind == "e" else 1
    lines = {rank: re.findall(rf"^\[rank{rank}\]:.*", text, re.MULTILINE) for rank in range(4)}
    before, words = BLAMED[kind], lines.pop(BLAMED[kind])
    witnesses = [(rank, said) for rank, said in lines.items() if said]
    if kind == "a":
        error = f"[rank1]: {ERRORS[(2 * again + (place > 0)) % len(ERRORS)]}"
        chain = [f"[rank1]: {CAUSE}", *words[:-3], "[rank1]: DataError: batch 3 cannot be used"]
        words = [*words[:-3], error, *chain * (again % 2)]
    elif kind == "b":
        ends[bad] = -SIGNALS[again]
    elif kind == "c" and again % 2:  # all but the first are stopped: that says nothing then
        ends = [TERM if rank != first else 1 for rank in range(world)]
    elif KINDS[place] == "E":
        change = ("ALLREDUCE", "BROADCAST") if again % 2 else ("=135661", "=735661")
        before, words = 1, [line.replace(*change) for line in lines[1]]
    said = {bad: _renamed(words, {before: bad}, first)}
    for rank in {*range(world)} - {bad}:
        before, words = rng.choice(witnesses)
        said[rank] = _renamed(words, {before: rank, BLAMED[kind]: bad}, first)
        if kind in "ab" and rank != first and rng.random() < 0.2:
            said[rank], ends[rank] = [], TERM  # before it has noticed
    return {"log": f"check.drawn_log({number})", "text": _put_together(rng, [*said.values()], ends, first)}


def _renamed(lines: list[str], ranks: dict[int, int], other: int) -> list[str]:
    def new(match: re.Match[str]) -> str:
        return match[1] + str(ranks.get(int(match[2]), other))

    return [re.sub(r"([rR]ank ?)(\d+)", new, line) for line in lines]


def _put_together(rng: random.Random, said: list[list[str]], ends: list[int], first: int) -> str:
    """The whole log: batches, the lines of the ranks, those of each in order, and torchrun's report."""
    lines, mixed = [f"batch {batch}" for batch in range(rng.randint(1, 9))], rng.random() < 0.4
    while waiting := [own for own in said if own]:
        own = rng.choice(waiting)
        taken = rng.randint(1, 4) if mixed else len(own)
        lines += own[:taken]
        del own[:taken]
    pids = [rng.randint(10_000, 60_000) + 3 * rank for rank in range(len(ends))]
    lines += [CLOSING.format(pids[rank]) + "SIGTERM" for rank, end in enumerate(ends) if end == TERM]
    lines += ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "Failures:"]
    others = [rank for rank in range(len(ends)) if rank != first]
    for place, rank in enumerate([*rng.sample(others, len(others)), first], 1):
        name = f" ({signal.Signals(-ends[rank]).name})" if ends[rank] < 0 else ""
        why = f"Signal {-ends[rank]}{name} received by PID {pids[rank]}" if name else SEE
        lines += ["-" * 60, "Root Cause (first observed failure):"] * (rank == first)
        lines.append(REPORT.format(place % len(ends), rank, ends[rank], pids[rank], name, why))
    return "\n".join([*lines, "=" * 60]) + "\n"


CASES = drawn(draw, 40)


def drawn_log(number: int) -> str:
    """The text of a log, as its check has numbered it."""
    return drawn(draw, 40)[number]["text"]


@exercise(OFFICIAL, CASES, title="Raw logs", difficulty=2, minutes=35)
def raw_logs(case: dict[str, Any], judge_log: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``judge_log(log)``, which returns the rank to blame, and what happened to it."""
    result = judge_log(case["text"])
    pair = isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], str)
    fault = "the result is not a pair: a rank, which is a whole number, and a text"
    refuse(not pair or number(result[0], whole=True) is None, fault, measured=shorten(result))
    rank, what = result
    refuse(what == "SIGTERM", f"SIGTERM is how torchrun stops who is left, rank {rank} too: it is no cause")
    said = re.findall(rf"^\[rank{rank}\]: (?:[\w.]+: )(.*)$", case["text"], re.MULTILINE)
    witness = said and re.search(r"Timed out waiting|Connection (closed|reset) by peer", said[0])
    refuse(witness, f"rank {rank} is a witness: its first error is about the time or the connection", measured=what)
    fault = f"rank {rank} has come to the collective, and waits in it or was ended there: look at what the ranks call"
    refuse(f"[Rank {rank}] Watchdog" in case["text"] and what != "mismatch", fault, measured=what)
    return {"the rank": rank, "what happened to it": what.rpartition(".")[2]}
