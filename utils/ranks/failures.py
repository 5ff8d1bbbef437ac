"""What the reader sees when a cell on ranks fails, hangs or is interrupted.

The rank that failed first comes first, with its traceback; the others say what they were waiting in, and for whom.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from utils.ranks import newer
from utils.ranks.errors import RankError, RankFailure, RanksInterrupted, RankTimeout
from utils.ranks.locate import nowhere
from utils.ranks.output import label, said_alike, text_table

KEPT = "The ranks live on with all their variables."
REMADE = (
    "The ranks live on with all their variables. Their process group was made again:\n"
    "make process groups of your own, and DistributedDataParallel wrappers, again too."
)
DEVICE_LOST = (
    "After such an error a process cannot use its GPU any more, whatever it does: this world has ended. The next "
    "%%ranks cell starts a new one, without the variables of the former."
)
LOST = "This world has ended: the next %%ranks cell starts a new one, without the variables of the former."

MOST_EQUAL_ROWS = 8  # of a table; what more ranks have in common is said once

_CONNECTION_WORDS = ("connection closed by peer", "connection reset", "gloo", "nccl", "socket", "broken pipe")


@dataclass
class Outcome:
    """How a cell went on one rank.

    Attributes:
        state: "finished", "raised", "killed", "stopped" (by us, while it was busy or waiting), "absent" (--only).
        place: where it was, for "stopped" and "raised": see :func:`utils.ranks.locate.place`; None if it did not say.
        at: monotonic time of its end, in seconds.
    """

    rank: int
    state: str
    at: float = 0.0
    value: str | None = None
    blob: bytes = b""
    error: dict[str, Any] | None = None
    code: int | None = None
    last_words: str = ""
    place: dict[str, Any] | None = None

    @property
    def speaks_of_connection(self) -> bool:
        """Whether it raised an error in the words of a broken connection."""
        message = self.error["message"].lower() if self.state == "raised" and self.error else ""
        return any(word in message for word in _CONNECTION_WORDS)

    @property
    def lost_connection(self) -> bool:
        """Whether its error only says that another rank has gone from a collective."""
        return self.speaks_of_connection and self.where()["call"] is not None

    @property
    def waiting(self) -> bool:
        return self.state == "stopped" or self.lost_connection

    def where(self) -> dict[str, Any]:
        place = self.error["place"] if self.state == "raised" and self.error else self.place
        return place or nowhere()

    @property
    def collective(self) -> str | None:
        """The collective that it is in, or that it has begun before and waits for now."""
        place = self.where()
        return place["call"] or place.get("begun")

    @property
    def stands_still(self) -> bool:
        """Whether it waits for something that is no call of torch.distributed: a work, DDP's buckets, a sleep."""
        return self.state == "stopped" and self.place is not None and bool(self.place.get("still"))


def how_it_ended(exit_status: int | None, in_sentence: bool = False) -> str:
    """``killed by SIGKILL`` or ``ended with exit code 3``; after a subject: ``was killed by SIGKILL``.

    Args:
        exit_status: as subprocess gives it: negative for a signal; None: nobody knows.
    """
    if exit_status is not None and exit_status >= 0:
        return f"ended with exit code {exit_status}"
    how = "lost"
    if exit_status is not None:
        names = {one.value: one.name for one in signal.Signals}
        how = f"killed by {names.get(-exit_status, f'signal {-exit_status}')}"
    return with_verb(how) if in_sentence else how


def with_verb(how: str, several: bool = False) -> str:
    """``killed by SIGKILL`` after its subject: ``was killed by SIGKILL``. (``ended with …`` has a verb of its own.)"""
    if not how.startswith(("killed", "lost")):
        return how
    return f"{'were' if several else 'was'} {how}"


def failure_of(outcome: Outcome) -> RankFailure:
    if outcome.state == "killed":
        reason = how_it_ended(outcome.code)
        if outcome.code == -signal.SIGKILL:
            reason += " (by hand, or by the system when memory ran out)"
        return RankFailure(outcome.rank, "Killed", reason, outcome.last_words, None, None)
    error = outcome.error or {}
    place = outcome.where()
    return RankFailure(
        outcome.rank,
        error.get("ename", ""),
        error.get("message", ""),
        error.get("traceback", ""),
        place["line"],
        place["code"],
    )


def failure(
    of_function: bool, outcomes: Sequence[Outcome], stopped_by: str | None, timeout: float | None, what_survives: str
) -> RankError | RanksInterrupted:
    """The exception for a cell or function that has failed, or was stopped by "time-out" or "interrupt"."""
    work, option = ("function", "timeout=") if of_function else ("cell", "--timeout ")
    if stopped_by == "interrupt":
        return RanksInterrupted(f"the {work} was interrupted", hang_report(outcomes, what_survives))
    if stopped_by == "time-out" and timeout:
        sentence = f"the {work} did not end within {timeout:g} s ({option}{2 * timeout:g} would give it twice as long)"
        return RankTimeout(sentence, [], hang_report(outcomes, what_survives))
    return rank_error(outcomes, what_survives)


def rank_error(outcomes: Sequence[Outcome], what_survives: str) -> RankError:
    """The exception for a cell in which at least one rank failed."""
    failed = [outcome for outcome in outcomes if outcome.state in ("raised", "killed")]
    # A broken connection is an echo of another rank's failure, also when its message is quicker; where a rank was
    # killed, also outside of a collective: in a library's thread, say.
    killed = any(outcome.state == "killed" for outcome in failed)
    failed.sort(key=lambda o: (o.speaks_of_connection if killed else o.lost_connection, o.at, o.rank))
    failures = [failure_of(outcome) for outcome in failed]
    first = failures[0]
    same = [f.rank for f in failures if (f.ename, f.message, f.line) == (first.ename, first.message, first.line)]
    sentence = f"{label(same)} {_what(first, len(same) > 1)}"

    lines = []
    if first.traceback:
        # Of ranks that fail alike, which one was first is chance: nothing that is shown should depend on it.
        shown = min((f for f in failures if f.rank in same), key=lambda failure: failure.rank)
        others = len(failures) > len(same)
        lines += [f"{label(same)}{' (first)' if others else ''}:", shown.traceback.rstrip(), ""]
    told = set(same)
    for outcome, failure in zip(failed, failures, strict=True):
        if failure.rank in told or outcome.lost_connection:
            continue
        told.add(failure.rank)
        place = f", in line {failure.line}" if failure.line else ""
        lines.append(f"rank {failure.rank} {_what(failure)}{place}")
    doing: dict[str, list[int]] = {}
    for outcome in outcomes:
        if outcome.rank not in told and outcome.waiting:
            doing.setdefault(_was_doing(outcome), []).append(outcome.rank)
    for what, ranks in doing.items():
        lines.append(f"{label(ranks)} {'were' if len(ranks) > 1 else 'was'} {what}")
    if what_survives:
        lines.append(what_survives)
    return RankError(sentence, failures, "\n".join(lines))


def hang_report(outcomes: Sequence[Outcome], what_survives: str) -> str:
    """The table of a cell that was stopped: who was where, and who was waiting for whom."""
    by_row: dict[tuple[str, ...], list[int]] = {}
    for outcome in outcomes:
        place = outcome.where()
        row: tuple[str, ...] = (_state(outcome), str(place["line"] or ""), (place["code"] or "")[:80])
        by_row.setdefault(row, []).append(outcome.rank)
    rows = []
    for row, ranks in by_row.items():
        together = [ranks] if len(ranks) > MOST_EQUAL_ROWS else [[rank] for rank in ranks]
        rows += [(some[0], (label(some).split(" ", 1)[1], *row)) for some in together]
    table = text_table([("rank", "state", "line", "code"), *(row for _, row in sorted(rows))])
    return "\n".join([*table, "", *who_waits_for_whom(outcomes), what_survives]).rstrip()


def who_waits_for_whom(outcomes: Sequence[Outcome]) -> list[str]:
    """Who waits for whom, in sentences."""
    by_rank = {outcome.rank: outcome for outcome in outcomes}
    waits: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for outcome in outcomes:
        place = outcome.where()
        if not outcome.waiting or outcome.collective is None:
            continue
        if place["peer"] is not None:
            others: tuple[int, ...] = (place["peer"],)
        else:
            group = place["ranks"] or list(by_rank)
            others = tuple(r for r in group if r in by_rank and not _in_same_call(by_rank[r], outcome))
        what = place["call"] or f"line {place['line']} for {place['begun']}, which was begun before,"
        waits.setdefault((what, others), []).append(outcome.rank)
    sentences = []
    for (what, others), ranks in waits.items():
        verb = "waits" if len(ranks) == 1 else "wait"
        if others:
            excuses: dict[str, list[int]] = {}
            for other in others:
                excuses.setdefault(_excuse(by_rank.get(other)), []).append(other)
            reasons = "; ".join(
                f"{label(ranks_so)} {_for_many(excuse) if len(ranks_so) > 1 else excuse}"
                for excuse, ranks_so in excuses.items()
            )
            so = "and so for" if what.endswith(",") else "for"
            sentences.append(f"{label(ranks)} {verb} in {what} {so} {label(others)}: {reasons}.")
        else:
            sentences.append(
                f"{label(ranks)} {verb} in {what.rstrip(',')}, and all of its group are there: "
                "their tensors may differ in size or type, or an earlier call was not the same on all ranks."
            )
    still: dict[tuple[int, bool], list[int]] = {}
    for outcome in outcomes:
        place = outcome.where()
        if outcome.stands_still and outcome.collective is None and place["line"]:
            still.setdefault((place["line"], bool(place.get("gpu"))), []).append(outcome.rank)
    for (line, gpu), ranks in still.items():
        what = "for a GPU, which still works" if gpu else "for a file, a lock, or in a sleep"
        begun = " and with no collective begun"
        if not gpu and newer.older_than(2, 11):  # its flight recorder does not follow gloo
            begun, what = "", f"for a collective begun before (torch before 2.11 tells none), {what[4:]}"
        sentences.append(
            f"{label(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in line {line}, in no call that names other "
            f"ranks{begun}: {what}."
        )
    return sentences


def meanwhile(outcomes: Sequence[Outcome], asks: int, waiting: set[int]) -> str:
    """One line while a rank asks the reader: what the others do, of whom some (``waiting``) have a question too."""
    said = []
    for outcome in outcomes:
        place = outcome.where()
        does = f"is {_state(outcome)}" + (f", line {place['line']}" if place["line"] else "")
        if outcome.rank in waiting:
            does = "has a question too"
        elif outcome.state != "stopped":
            does = "is done" if outcome.state == "finished" else f"has ended: {_state(outcome)}"
        if outcome.rank != asks and outcome.state != "absent":
            said.append((outcome.rank, does))
    many = [f"{who} {_for_many(does) if who.startswith('ranks') else does}" for does, who in said_alike(said)]
    return f"(meanwhile: {'; '.join(many)})" if many else ""


def _in_same_call(one: Outcome, other: Outcome) -> bool:
    return one.waiting and one.collective == other.collective


def _excuse(outcome: Outcome | None) -> str:
    if outcome is None:
        return "is not in this world"
    place = outcome.where()
    if outcome.state == "finished":
        return "has finished the cell, without that call or with one that did not fit"
    if outcome.state == "absent":
        return "was not asked to run this cell (--only)"
    if place["call"]:
        return f"is in {place['call']}" + (f" (line {place['line']})" if place["line"] else "")
    return f"is {_state(outcome)}" + (f" in line {place['line']}" if place["line"] else "")


def _for_many(excuse: str) -> str:
    for one, many in (("is ", "are "), ("has ", "have "), ("was ", "were ")):
        if excuse.startswith(one):
            return many + excuse.removeprefix(one)
    return excuse


def _state(outcome: Outcome) -> str:
    place = outcome.where()
    if outcome.state == "stopped" or outcome.lost_connection:
        if place["call"]:
            return f"waiting in {place['call']}"
        if outcome.stands_still:
            return "waiting"
        return "busy" if outcome.place else "busy, did not answer"  # it may be busy in no line of the reader's
    if outcome.state == "raised":
        return f"raised {outcome.error['ename']}" if outcome.error else "raised"
    if outcome.state == "killed":
        return how_it_ended(outcome.code)
    return {"finished": "finished the cell", "absent": "not asked (--only)"}[outcome.state]


def _was_doing(outcome: Outcome) -> str:
    place = outcome.where()
    if place["call"]:
        return f"waiting in {place['call']}" + (f", line {place['line']}: {place['code']}" if place["line"] else "")
    if place["line"]:
        return f"{'waiting' if outcome.stands_still else 'stopped'} in line {place['line']}: {place['code']}"
    return "stopped"


def _what(failure: RankFailure, several: bool = False) -> str:
    if failure.ename in ("Killed", "BdbQuit"):
        return with_verb(failure.message, several)
    message = failure.message.split("\n")[0][:300]
    return f"failed: {failure.ename}: {message}" if message else f"failed: {failure.ename}"
