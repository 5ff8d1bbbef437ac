"""Logs of launches that failed: those that are stored, and drawn ones, which are made of their lines.

Logs a to d were printed by torch 2.13 under gloo. NCCL was not run here: e has the form of reports from 2025.
"""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Sequence

from course import outline

FOLDER = outline.FILES / "scripts" / "failures" / "logs"
BLAMED = {"a": 1, "b": 2, "c": 2, "d": 1, "e": 0}  # each stored log, and the rank to blame
KINDS = "abcdea" + "E"  # E: under NCCL, the rank has called something else
ERRORS = (
    "RuntimeError: time step 3 is missing", "ValueError: I/O operation on closed file.", "queue.Empty",
    "StopIteration", "AssertionError", "ZeroDivisionError: division by zero",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "ValueError: 3 labels for 4 images",
    "RuntimeError: The size of tensor a (4) must match the size of tensor b (3) at non-singleton dimension 0",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/part-7.pt'",
)  # fmt: skip
SIGNALS, TERM = (9, 11, 6, 7, 8, 4), -15
CAUSE = "The above exception was the direct cause of the following exception:"
REPORT = """  time      : 2026-11-23_{clock}
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : {end} (pid: {pid}) {name}
  error_file: <N/A>
  traceback : {why}"""


def stored(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def log_of(rng: random.Random, number: int) -> str:
    """A log of other ranks, with another fault of one of the stored kinds."""
    again, kind = divmod(number, len(KINDS))
    letter, world = KINDS[kind].lower(), rng.randint(3, 8)
    text, own = stored(letter), BLAMED[letter]
    bad = (0, world - 1, rng.randrange(world))[min(again, 2)]
    others = [rank for rank in range(world) if rank != bad]
    first = rng.choice(others) if letter != "b" or again % 2 else bad  # that torchrun sees
    ends = [rng.choice((-6 if letter == "e" else 1, TERM)) for _ in range(world)]
    lines = {rank: re.findall(rf"^\[rank{rank}\]:.*", text, re.MULTILINE) for rank in range(4)}
    blamed = lines.pop(own)
    if letter == "a":
        blamed = _raised(blamed, ERRORS[2 * again + (kind > 0)], again % 2 == 1)
    elif letter == "b":
        ends[bad] = -SIGNALS[again]
    elif letter == "c" and again % 2:  # all but the first are stopped: that says nothing then
        ends = [TERM] * world
    elif KINDS[kind] == "E":
        blamed = [_other_call(_renamed(line, {1: own}, own), again) for line in lines[1]]
    elif letter == "e" and again % 2:
        blamed = []
    ends[first] = ends[first] if first == bad else -6 if letter == "e" else 1
    witnesses, said = [(rank, words) for rank, words in lines.items() if words], [[] for _ in range(world)]
    for rank in range(world):
        before, words = (own, blamed) if rank == bad else rng.choice(witnesses)
        renamed = {before: rank} | ({own: bad} if rank != bad else {})
        said[rank] = [_renamed(line, renamed, others[0]) for line in words]
        if letter in "ab" and rank not in (first, bad) and rng.random() < 0.2:
            said[rank], ends[rank] = [], TERM  # before it has noticed
    if letter == "d":
        size, another, how = rng.randint(2, 5000), rng.randint(5001, 9000), again % 2
        said = [[_other_sizes(line, size, another, how) for line in words] for words in said]
    return _put_together(rng, text, said, ends, first)


def _raised(lines: Sequence[str], error: str, wrapped: bool) -> list[str]:
    """A rank with this exception of its own, from which another one may be raised; the lines of code left out."""
    frames = lines[:-3]
    head = frames[0][: frames[0].index(":") + 2]
    chain = [head + CAUSE, *frames, head + "DataError: batch 3 cannot be used"]
    return [*frames, head + error, *(chain if wrapped else [])]


def _renamed(line: str, ranks: dict[int, int], other: int) -> str:
    return re.sub(r"([rR]ank ?)(\d+)", lambda match: match[1] + str(ranks.get(int(match[2]), other)), line)


def _other_call(line: str, again: int) -> str:
    """Of NCCL's watchdog: another operation, or another size."""
    return line.replace("ALLREDUCE", "BROADCAST") if again % 2 else re.sub(r"(Numel\w+=)\d", r"\g<1>7", line)


def _other_sizes(line: str, size: int, another: int, operation: bool) -> str:
    """Log d's mismatch with other sizes, or with another operation."""
    if operation:
        line = re.sub(r"ALLREDUCE(, TensorShape=)\[744\]", rf"BROADCAST\1[{size}]", line)
        line = re.sub(r"Tensor Tensor shapes: .*", "Op type: ALLREDUCEvs BROADCAST", line)
    return re.sub(r"(?<!\d)1000(?!\d)", str(size), line).replace("744", str(another))


def _put_together(rng: random.Random, text: str, said: list[list[str]], ends: Sequence[int], first: int) -> str:
    """The whole log: batches, the lines of the ranks, those of one in order, and torchrun's report."""
    lines = [f"batch {batch}" for batch in range(rng.randint(1, 9))]
    mixed = rng.random() < 0.4
    while waiting := [words for words in said if words]:
        words = rng.choice(waiting)
        taken = rng.randint(1, 4) if mixed else len(words)
        lines += words[:taken]
        del words[:taken]
    pids = [rng.randint(10_000, 60_000) + 3 * rank for rank in range(len(ends))]
    others = [rank for rank in range(len(ends)) if rank != first]
    closing = re.search("^.*closing signal.*$", text, re.MULTILINE)
    failed = re.search(r"^.*failed \(exitcode.*$", text, re.MULTILINE)
    assert closing and failed
    lines += [re.sub(r"process \d+", f"process {pids[rank]}", closing[0]) for rank in others]
    place = f"(exitcode: {ends[first]}) local_rank: {first} (pid: {pids[first]})"
    lines.append(re.sub(r"\(exitcode.*pid: \d+\)", place, failed[0]))
    lines.append(text[failed.end() + 1 : text.index("Failures:")] + "Failures:")
    clock = re.search(r"23_(\S+)", text)
    rng.shuffle(others)
    for number, rank in enumerate([*others, first], 1):
        name = signal.Signals(-ends[rank]).name if ends[rank] < 0 else ""
        why = f"Signal {-ends[rank]} ({name}) received by PID {pids[rank]}"
        see = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        if rank == first:
            lines += ["-" * 60, "Root Cause (first observed failure):"]
        about = {"clock": clock and clock[1], "rank": rank, "end": ends[rank], "pid": pids[rank]}
        report = REPORT.format(**about, name=f" ({name})" if name else "", why=why if name else see)
        lines += [f"[{number if rank != first else 0}]:", report]
    return "\n".join([*lines, "=" * 60]) + "\n"
