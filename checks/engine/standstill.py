"""Ranks that stand still: a watch in every rank sees that nothing moves any more, and ends them all at once.

A time-out would have to be long on a slow machine. The watch is a thread that looks at its rank ten times a second. A
rank *waits* when its main thread is where it was at the last look, nothing in the process computes or is about to, no
thread sleeps for a while or reads a disk, and there is no child process that could still have news. Ranks *stand still*
when, look after look, each of them waits in the same place or has come to its end, and at least one waits.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from checks.engine import printed
from checks.engine.threads import Threads
from utils.ranks.output import text_table

TICK = 0.1  # seconds between two looks
QUIET = 2  # so many looks without a move, and it is asked where the rank is
STILL = 10  # so many looks without any change: a machine that is too busy for the ranks is too busy for the looks too
STILL_ELSEWHERE = 120  # … where a rank may wait for somebody else: ten seconds for a name server that never answers
HUNG = "hung"  # the file that the first rank writes which sees it
_exit = os._exit  # an answer may run with another one
End = dict[str, Any]  # how one rank ended: "state" (waits, returned, raised), "line", "code", "call", "text", "value"


def hung(notes: str | Path) -> list[End] | None:
    """How each rank stood still, if they did; ``notes`` is the folder that their watches were given."""
    path = Path(notes, HUNG)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


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
    return "\n".join(text_table(rows))


def report(ends: list[End]) -> str:
    """The table, and beneath it who waits for whom."""
    from utils.ranks.failures import Outcome, who_waits_for_whom

    states = {"waits": "stopped", "returned": "finished"}
    outcomes = [
        Outcome(rank, states[end["state"]], place=end.get("place") and end["place"] | {"still": True})
        for rank, end in enumerate(ends)
        if end["state"] in states
    ]
    return "\n".join([table(ends), "", *who_waits_for_whom(outcomes)]).rstrip()


def _state(end: End, line: bool = True) -> str:
    if end["state"] == "returned":
        return "has returned"
    if end["state"] == "raised":
        return "has raised an exception"
    where = f" (line {end['line']})" if line and end.get("line") else ""
    return f"waits in {end['call']}{where}" if end.get("call") else f"waits{where}"


class Watch(threading.Thread):
    """Looks at this rank, and at what the other ranks' watches have written.

    Args:
        notes: a folder that all ranks share.
        rank, ranks: this rank, and how many there are.
        seconds: after that the ranks are ended anyway; a wait that ends by itself before that is none.
    """

    of_this_rank: Watch | None = None

    def __init__(self, notes: str, rank: int, ranks: int, seconds: float) -> None:
        super().__init__(daemon=True, name="watch")
        Watch.of_this_rank = self
        self.notes, self.rank, self.ranks = Path(notes), rank, ranks
        self.end: End | None = None
        self.over = threading.Event()
        self.moves = self.looks = 0
        self._until = time.monotonic() + seconds
        self._noting = threading.Lock()
        self._before: tuple[int, int] | None = None
        self._found: dict[str, Any] = {}
        self._quiet, self._spun = 0, False
        self._main = threading.main_thread()
        self._threads: Threads | None = None

    def ended(self, end: End) -> None:
        """The main thread has come to its end; the others may still wait for it."""
        self.end = end
        self._note_state()

    def finish(self, end: End) -> None:
        """The same, and wait until all others have ended too, or stand still."""
        self.ended(end)
        while not all(state and state["state"] in ("returned", "raised") for state in self._states()):
            time.sleep(TICK / 4)
        self.over.set()

    def run(self) -> None:
        self._threads = Threads(self._until)
        first: list[Any] = []  # what was seen when nothing changed any more
        still = 0
        while not self.over.is_set():
            self._note_state()
            states = self._states()
            if (self.notes / HUNG).exists():
                self._leave()
            waiting = [state for state in states if state and state["state"] == "waits"]
            stopped = waiting and all(state and state["state"] != "runs" for state in states)
            if not (stopped and list(map(_place, states)) == list(map(_place, first))):
                first, still = states, 0
            elif all(
                now["looks"] > before["looks"] + still for now, before in zip(states, first, strict=True)
            ):  # an old note of a rank that does not look any more proves nothing
                still += 1
            sure = all(map(_for_ranks, waiting)) and not self._spun
            if stopped and still >= (STILL if sure else STILL_ELSEWHERE):
                self._write(HUNG, json.dumps(states))
                self._leave()
            time.sleep(TICK)

    def _leave(self) -> None:
        printed.here.leave(self.notes, self.rank)
        _exit(1)

    def _look(self) -> End:
        from utils.ranks.locate import looking, place_of

        self.looks += 1
        notes = {"looks": self.looks}
        if self.end is not None:  # what other threads of this rank still do may wake another rank
            self.moves += self._threads is None or not self._threads.all_wait(main_counts=False)
            return self.end | notes | {"moves": self.moves}
        # Who looks at a frame keeps its tensors for that moment, and some checks count the bytes of tensors. So frames
        # are looked at only where nothing has moved for some looks.
        self._quiet = self._quiet + 1 if self._threads.all_wait() else 0
        spot, found = None, {"line": None, "code": None, "call": None}
        if self._quiet >= QUIET:
            main = self._main.ident or 0
            with looking:
                frame = sys._current_frames()[main]
                spot = (id(frame), frame.f_lasti)
                del frame
            if spot != self._before:
                self._found = place_of(main)
            found = self._found
        waits = spot is not None and spot == self._before
        self._before = spot
        self.moves += not waits
        where = {name: found[name] for name in ("line", "code", "call")}
        notes |= {"moves": self.moves, "place": found, "state": "waits" if waits else "runs"}
        self._spun |= self._threads.spins
        return where | notes

    def _note_state(self) -> None:
        """Let the other ranks know: a look and its note in one, or the watch's last look could hide the end."""
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


def _for_ranks(state: End) -> bool:
    """Whether a rank that waits surely waits for other ranks: in a collective, or for one that was begun before.

    (Not where a group is made: there torch asks name servers.)
    """
    return bool(state["call"] and state["call"] != "init_process_group") or ".wait(" in (state["code"] or "")


def _place(state: End | None) -> End:
    """What must not change while a rank stands still."""
    return {name: value for name, value in (state or {}).items() if name != "looks"}
