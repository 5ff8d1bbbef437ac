"""Ranks that stand still: a watch in every rank sees that nothing moves any more, and ends them all at once.

A time-out would have to be long on a slow machine. The watch is a thread that looks at its rank ten times a second. A
rank *waits* when its main thread is where it was at the last look, in no line that says sleep, and nothing in its
process works (``utils.ranks.stillness``). Ranks *stand still* when, look after look, each of them waits in the same
place or has come to its end, and at least one waits: for a second if they surely wait for each other, else for four.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from checks.engine import printed
from utils.ranks import stillness
from utils.ranks.output import text_table

TICK = 0.1  # seconds between two looks
QUIET = 2  # so many looks without work, and it is asked where the rank is
STILL = 10  # so many looks without any change: a machine that is too busy for the ranks is too busy for the looks too
STILL_ELSEWHERE = 40  # … where a rank waits in no collective, or has threads that may still do something
HUNG = "hung"  # the file that the first rank writes which sees it
_exit = os._exit  # an answer may run with another one
End = dict[str, Any]  # how one rank ended: "state" (waits, returned, raised), "line", "code", "call", "text", "value"


def hung(notes: str | Path) -> list[End] | None:
    """How each rank stood still, if they did; ``notes`` is the folder that their watches were given."""
    path = Path(notes, HUNG)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def who_waits(ends: list[End]) -> str:
    """One sentence: "rank 0 waits in all_reduce (line 4), and rank 1 has returned"."""
    states = {}
    for rank, end in enumerate(ends):
        where = f" (line {end['line']})" if end.get("line") else ""
        states.setdefault((end["state"], f"{_call(end)}{where}"), []).append(rank)
    parts = []
    for (state, where), ranks in states.items():
        names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        parts.append(f"{names} {_VERBS[state][len(ranks) > 1]}{where if state == 'waits' else ''}")
    return ", and ".join(parts)


_VERBS = {
    "waits": ("waits", "wait"),
    "returned": ("has returned", "have returned"),
    "raised": ("has raised an exception", "have raised an exception"),
}


def _call(end: End) -> str:
    return f" in {end['call']}" if end.get("call") else ""


def table(ends: list[End]) -> str:
    """How each rank ended, a row each."""
    rows = [("rank", "state", "line", "code")]
    for rank, end in enumerate(ends):
        state = f"{_VERBS[end['state']][0]}{_call(end)}"
        rows.append((str(rank), state, str(end.get("line") or ""), (end.get("code") or "")[:80]))
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


class Watch(threading.Thread):
    """Looks at this rank, and at what the other ranks' watches have written.

    Args:
        notes: a folder that all ranks share.
        rank, ranks: this rank, and how many there are.
    """

    of_this_rank: Watch | None = None

    def __init__(self, notes: str, rank: int, ranks: int) -> None:
        super().__init__(daemon=True, name="watch")
        Watch.of_this_rank = self
        self.notes, self.rank, self.ranks = Path(notes), rank, ranks
        self.over = threading.Event()
        self._end: End | None = None
        self._looks = self._moves = self._quiet = 0
        self._instruction: tuple[int, int] | None = None
        self._place: dict[str, Any] = {}
        self._work: stillness.Work | None = None
        self._noting = threading.Lock()
        self._threads = threading.active_count() + 1

    def ended(self, end: End) -> None:
        """The main thread has come to its end; the others may still wait for it."""
        self._end = end
        self._note()

    def finish(self, end: End) -> None:
        """The same, and wait until all others have ended too, or stand still."""
        self.ended(end)
        while not all(state and state["state"] in ("returned", "raised") for state in self._states()):
            time.sleep(TICK / 4)
        self.over.set()

    def run(self) -> None:
        self._work = stillness.Work()
        first: list[Any] = []  # what was seen when nothing changed any more
        while not self.over.is_set():
            self._note()
            states = self._states()
            if (self.notes / HUNG).exists():
                self._leave()
            if list(map(_without_looks, states)) != list(map(_without_looks, first)):
                first = states
            if _has_stood_still(first, states):
                self._write(HUNG, json.dumps(states))
                self._leave()
            time.sleep(TICK)

    def _leave(self) -> None:
        printed.here.leave(self.notes, self.rank)
        _exit(1)

    def _look(self) -> End:
        self._looks += 1
        busy = self._work is None or self._work.goes_on()
        counts = {"looks": self._looks, "threads": threading.active_count() > self._threads}
        if self._end is not None:  # what other threads of this rank still do may wake another rank
            self._moves += busy
            return self._end | counts | {"moves": self._moves}
        # Who looks at a frame keeps its tensors for that moment, and some checks count the bytes of tensors. So frames
        # are looked at only where nothing has moved for some looks.
        self._quiet = 0 if busy else self._quiet + 1
        before, self._instruction = self._instruction, None
        if self._quiet >= QUIET:
            self._where(before)
        waits = self._instruction is not None and self._instruction == before
        waits = waits and "sleep(" not in (self._place["code"] or "")
        self._moves += not waits
        where = {name: self._place.get(name) for name in ("line", "code", "call")}
        return where | counts | {"moves": self._moves, "place": self._place, "state": "waits" if waits else "runs"}

    def _where(self, before: tuple[int, int] | None) -> None:
        from utils.ranks.locate import place_of

        main = threading.main_thread().ident or 0
        self._instruction = stillness.instruction(main)
        if self._instruction != before:
            self._place = place_of(main)

    def _note(self) -> None:
        """Let the other ranks know: a look and its note in one, or the watch's last look could hide the end."""
        with self._noting:
            self._write(f"state.{self.rank}", json.dumps(self._look()))

    def _states(self) -> list[Any]:
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


def _has_stood_still(first: list[Any], states: list[Any]) -> bool:
    """Whether ranks have not moved for long enough since they were first seen so. Where all who wait do so in a
    collective, or for one that was begun before, and no thread is there that could still do something, that is soon."""
    waiting = [state for state in states if state and state["state"] == "waits"]
    if not waiting or not all(state and state["state"] != "runs" for state in states):
        return False
    sure = all(state["call"] or ".wait()" in (state["code"] or "") for state in waiting)
    sure = sure and not any(state["threads"] for state in states)
    # (An old note of a rank that does not look any more proves nothing: the looks of each are counted.)
    looks = min(now["looks"] - before["looks"] for now, before in zip(states, first, strict=True))
    return looks >= (STILL if sure else STILL_ELSEWHERE)


def _without_looks(state: End | None) -> End:
    """What must not change while a rank stands still."""
    return {name: value for name, value in (state or {}).items() if name != "looks"}
