"""Lab 09's watch over ranks: it sees that nothing moves any more, says who waits where, and ends them at once.

A time-out would have to be long on a slow machine. Here a thread in every rank looks at the main thread again and
again. Ranks stand still when, look after look, each of them waits in the same place or has ended, and at least one
waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from utils.checks.answers import Answer
from utils.checks.sandbox import run
from utils.checks.verdicts import Wrong

TICK = 0.1  # seconds between two looks
STILL = 12  # so many looks without any change: a machine that is too busy for the ranks is too busy for the looks too
STILL_ELSEWHERE = 40  # … where a rank waits in no collective, but maybe for a disk
HUNG = "hung"  # the file that the first rank writes which sees it
_SUBJECT = re.compile(r"^.*?(?= ended its process| was not finished)", re.DOTALL)
_exit = os._exit  # lab 09's script is run with another one
End = dict[str, Any]  # how one rank ended: "state" (waits, returned, raised), "line", "code", "call", "text", "value"


def run_watched(
    probe: Callable[..., Any], *arguments: Any, ranks: int, nodes: int = 1, timeout: float = 25
) -> list[End]:
    """Run a probe on ranks as ``run`` does, but let each rank come to its own end, and say how each ended.

    Raises:
        Wrong: a process has died, or was too slow.
        NotStarted: the answer says so.
    """
    with tempfile.TemporaryDirectory(prefix="check-") as notes:
        try:
            return run(_watched, probe, arguments, notes, ranks=ranks, nodes=nodes, timeout=timeout)
        except Wrong as wrong:
            if not Path(notes, HUNG).exists():
                name = next((argument.name for argument in arguments if isinstance(argument, Answer)), "the probe")
                wrong.sentence = _SUBJECT.sub(name, wrong.sentence)
                raise
            return json.loads(Path(notes, HUNG).read_text())


@contextlib.contextmanager
def a_case(text: str) -> Iterator[None]:
    """In a probe, around one call of the answer: all ranks begin it together, and ``text`` names it in sentences."""
    import torch.distributed as dist

    dist.barrier()
    watcher = _Watcher.of_this_rank
    if watcher:
        watcher.case, watcher.inside = text, True
    yield
    if watcher:
        watcher.inside = False


def require_returned(ends: list[End], lead: str) -> None:
    """Raise Wrong if a rank waits for ever, with ``lead`` and who waits for whom, or if a rank has raised."""
    raised = [rank for rank, end in enumerate(ends) if end["state"] == "raised"]
    if raised:
        raised.sort(key=lambda rank: not ends[rank].get("found"))  # what the check has found says more
        numbers, many = ", ".join(map(str, raised)), len(raised) > 1
        alone = (
            ""
            if len(raised) == len(ends) or ends[raised[0]].get("found")
            else f"on rank{'s' if many else ''} {numbers} "
        )
        raise Wrong(f"{alone}{ends[raised[0]]['text']}", details=table(ends) if alone else "")
    waiting = [end for end in ends if end["state"] == "waits"]
    case = f" ({waiting[0]['case']})" if waiting and waiting[0].get("case") else ""
    if waiting and all(end["state"] == "waits" and not end["inside"] for end in ends):
        raise Wrong(
            f"All ranks have returned, and yet their process group is stuck{case}: something was begun and never "
            "waited for. isend, irecv and async_op=True return a work: call its wait()."
        )
    if waiting:
        raise Wrong(f"{lead}: {who_waits(ends)}{case}.", details=table(ends))


def who_waits(ends: list[End]) -> str:
    """One sentence: "rank 0 waits in all_reduce (line 4), and rank 1 has returned"."""
    groups: dict[str, list[int]] = {}
    for rank, end in enumerate(ends):
        groups.setdefault(_state(end), []).append(rank)
    parts = []
    for state, ranks in groups.items():
        many = len(ranks) > 1
        name = f"rank{'s' if many else ''} {', '.join(map(str, ranks))}"
        words = state.replace("waits", "wait").replace("has ", "have ") if many else state
        parts.append(f"{name} {words}")
    return ", and ".join(parts)


def table(ends: list[End]) -> str:
    """How each rank ended, a row each."""
    rows = [("rank", "state", "line", "code")]
    for rank, end in enumerate(ends):
        rows.append((str(rank), _state(end, line=False), str(end.get("line") or ""), (end.get("code") or "")[:80]))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def show(function: Callable[[], Any], ranks: int = 2) -> None:
    """For the lab: run a function of the notebook on ranks, and print how each rank ended and what it returned."""
    from utils.launchers.failures.log_lines import plain

    try:
        ends = run_watched(_call, Answer.of(function, "the program"), ranks=ranks)
    except Wrong as died:
        return print(died.sentence)
    print(table(ends))
    for rank, end in enumerate(ends):
        if end["state"] == "raised":
            print(f"rank {rank}: {plain(end['text'])}")
        elif end.get("value") is not None:
            print(f"rank {rank} returned {end['value']}")


def _call(function: Callable[[], Any]) -> Any:
    return function()


def _state(end: End, line: bool = True) -> str:
    if end["state"] == "returned" or not end.get("inside", True):
        return "has returned"
    if end["state"] == "raised":
        return "has raised an exception"
    where = f" (line {end['line']})" if line and end.get("line") else ""
    return f"waits in {end['call']}{where}" if end.get("call") else f"waits{where}"


def _watched(probe: Callable[..., Any], arguments: tuple[Any, ...], notes: str) -> End:
    """Inside a rank: the probe, and how it ended."""
    import torch.distributed as dist

    from utils.checks.inside import Outcome

    watcher = _Watcher(notes, dist.get_rank(), dist.get_world_size())
    watcher.start()
    value = None
    try:
        value = probe(*arguments)
        end: End = {"state": "returned"}
    except Wrong as wrong:
        end = {"state": "raised", "text": wrong.text, "found": True}
    except Outcome as outcome:
        if outcome.record["kind"] == "not started":
            raise
        end = {"state": "raised", "text": outcome.record["sentence"]}
    watcher.finish(end)
    return end | {"value": value}


class _Watcher(threading.Thread):
    """Looks at the main thread, and at what the other ranks' watchers have written."""

    of_this_rank: _Watcher | None = None

    def __init__(self, notes: str, rank: int, ranks: int) -> None:
        super().__init__(daemon=True)
        _Watcher.of_this_rank = self
        self.notes, self.rank, self.ranks = Path(notes), rank, ranks
        self.case, self.inside = "", True
        self.end: End | None = None
        self.over = threading.Event()
        self.moves = self.looks = 0
        self._noting = threading.Lock()
        self._before: tuple[Any, ...] = ()
        self._used = 0.0
        self._main = threading.main_thread().ident or 0

    def finish(self, end: End) -> None:
        """The main thread has come to its end: wait until all others have too, or stand still."""
        self.end = end
        self._note_state()
        while not all(state and state["state"] in ("returned", "raised") for state in self._states()):
            time.sleep(TICK / 4)
        self.over.set()

    def run(self) -> None:
        first: list[Any] = []  # what was seen when nothing changed any more
        still = 0
        while not self.over.is_set():
            self._note_state()
            states = self._states()
            if (self.notes / HUNG).exists():
                _exit(1)
            waiting = [state for state in states if state and state["state"] == "waits"]
            stopped = waiting and all(state and state["state"] != "runs" for state in states)
            if not (stopped and list(map(_place, states)) == list(map(_place, first))):
                first, still = states, 0
            elif all(
                now["looks"] > before["looks"] + still
                for now, before in zip(states, first, strict=True)
                if now["state"] == "waits"
            ):  # an old note of a rank that does not look any more proves nothing
                still += 1
            if stopped and still >= (STILL if all(state["call"] for state in waiting) else STILL_ELSEWHERE):
                self._write(HUNG, json.dumps(states))
                _exit(1)
            time.sleep(TICK if self.end is None or still else TICK / 4)

    def _look(self) -> End:
        from utils.ranks.locate import POLLING, frames_under, place, seconds_of_core

        if self.end is not None:
            return self.end | {"case": self.case}
        frame = sys._current_frames()[self._main]
        now, used = (id(frame), frame.f_lasti), seconds_of_core(self._main)
        same = now == self._before and used - self._used < POLLING
        self._before, self._used = now, used
        self.moves += not same
        found = place(frames_under(frame))
        where = {name: found[name] for name in ("line", "code", "call")}
        state = "waits" if same else "runs"
        self.looks += 1
        notes = {"moves": self.moves, "looks": self.looks, "case": self.case, "inside": self.inside}
        return where | {"state": state} | notes

    def _note_state(self) -> None:
        """Let the other ranks know: a look and its note in one, or the watcher's last look could hide the end."""
        with self._noting:
            self._write(f"state.{self.rank}", json.dumps(self._look()))

    def _states(self) -> list[End | None]:
        return [self._read(self.notes / f"state.{rank}") for rank in range(self.ranks)]

    @staticmethod
    def _read(path: Path) -> End | None:
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            return None

    def _write(self, name: str, text: str) -> None:
        new = self.notes / f"{name}.{self.rank}.new"
        new.write_text(text)
        os.replace(new, self.notes / name)


def _place(state: End | None) -> End:
    """What must not change while a rank stands still."""
    return {name: value for name, value in (state or {}).items() if name != "looks"}
