"""Ranks that stand still: a watch in every rank sees that nothing moves any more, and ends them all at once.

The watch is a thread that looks at its rank ten times a second. A rank *moves* if its main thread computes or is at
another instruction than at the last look, if another thread of Python computes, or while it has a child process. Ranks
*stand still* when, look after look, none of them moves, and at least one has not come to its end. Two seconds of that
tell, where all are in a collective. Elsewhere a rank may sleep, read a disk, or wait for a name server that never
answers: it is ended when it stands still for much longer than any answer would.
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
from utils.ranks.locate import looking, place_of, seconds_of_core
from utils.ranks.output import said_alike, text_table

TICK = 0.1  # seconds between two looks
QUIET = 2  # so many looks without a move, and it is asked where the rank is
STILL = 20  # so many looks without any change: a machine that is too busy for the ranks is too busy for the looks too
STILL_ELSEWHERE = 200  # … where a rank may wait for something else than ranks
COMPUTING = 0.1  # of a core: a wait needs less, also one that asks a store again and again
HUNG = "hung"  # the file that the first rank writes which sees it
WAITS = [str(Path(__file__).with_name(name)) for name in ("messages.py", "wire.py")]  # where checks wait for messages
_exit = os._exit  # an answer may run with another one
End = dict[str, Any]  # how one rank ended: "state" (waits, returned, raised), "line", "code", "call", "text", "value"


def hung(notes: str | Path) -> list[End] | None:
    """How each rank stood still, if they did; ``notes`` is the folder that their watches were given."""
    return read_note(Path(notes, HUNG))


def who_waits(ends: list[End]) -> str:
    """One sentence: "rank 0 waits in all_reduce (line 4), and rank 1 has returned"."""
    parts = []
    for state, ranks in said_alike((rank, _state(end)) for rank, end in enumerate(ends)):
        many = ranks.startswith("ranks")
        parts.append(f"{ranks} {state.replace('waits', 'wait').replace('has ', 'have ') if many else state}")
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
    """

    of_this_rank: Watch

    def __init__(self, notes: str, rank: int, ranks: int) -> None:
        super().__init__(daemon=True, name="watch")
        Watch.of_this_rank = self
        self.notes, self.rank, self.ranks = Path(notes), rank, ranks
        self.end: End | None = None
        self.over = threading.Event()
        self._main = threading.main_thread().ident or 0
        self._noting = threading.Lock()
        self._looks = self._moves = self._quiet = 0
        self._sure = False  # whether this rank could only wait for ranks
        self._before: tuple[int, int, bool] | None = None  # where the main thread was at the last look
        self._place: dict[str, Any] = {}
        self._used = time.monotonic(), time.process_time(), seconds_of_core(self._main)

    def ended(self, end: End) -> None:
        """The main thread has come to its end; the others may still wait for it."""
        self.end = self.end or end
        self._note()

    def run(self) -> None:
        first: list[Any] = []  # what the ranks had noted when they moved for the last time
        while not self.over.wait(TICK):
            if hung(self.notes) is not None:
                self._leave()
            self._note()
            notes = [read_note(self.notes / f"state.{rank}") for rank in range(self.ranks)]
            if not all(notes) or [note["moves"] for note in notes] != [note["moves"] for note in first]:
                first = notes if all(notes) else []
            patience = STILL if all(note and note["sure"] for note in notes) else STILL_ELSEWHERE
            # (An old note of a rank that does not look any more proves nothing.)
            still = first and all(
                now["looks"] > then["looks"] + patience for now, then in zip(notes, first, strict=True)
            )
            if still and any(note["state"] == "waits" for note in notes):
                self._write(HUNG, json.dumps(notes))
                self._leave()

    def _leave(self) -> None:
        printed.here.leave(self.notes, self.rank)
        _exit(1)

    def _look(self) -> End:
        self._looks += 1
        now = time.monotonic(), time.process_time() - time.thread_time(), seconds_of_core(self._main)
        elapsed, used, used_by_main = (after - before for after, before in zip(now, self._used, strict=True))
        self._used, computing = now, COMPUTING * max(elapsed, TICK)
        others = len([thread for thread in threading.enumerate() if thread.name != "notebook"]) > 2  # main and watch
        moves = (used if others else used_by_main) > computing or _has_children()
        sure, found = used <= computing and not others, {}
        if self.end is None:
            # Who looks at a frame keeps its tensors for that moment, and some checks count the bytes of tensors. So
            # frames are looked at only where nothing has moved for some looks.
            self._quiet = 0 if moves else self._quiet + 1
            spot = self._spot() if self._quiet >= QUIET else None
            if spot and spot != self._before:
                self._place = place_of(self._main)
            moves = moves or spot is None or spot != self._before
            self._before, found = spot, {} if moves else self._place
            in_collective = found and found["call"] not in (None, "init_process_group")
            sure = sure and bool(in_collective or (found and spot and spot[2]))
        moves = moves or sure != self._sure  # what a rank waits for may have come just now
        self._moves, self._sure = self._moves + moves, sure
        where = {name: found.get(name) for name in ("line", "code", "call")} | {"place": found}
        end = self.end or {"state": "runs" if moves else "waits"} | where
        return end | {"looks": self._looks, "moves": self._moves, "sure": sure}

    def _spot(self) -> tuple[int, int, bool]:
        """At which instruction the main thread is, and whether the check's own wait for a message is there."""
        with looking:
            frame = sys._current_frames()[self._main]
            spot = id(frame), frame.f_lasti, frame.f_code.co_filename in WAITS
            del frame
        return spot

    def _note(self) -> None:
        """Let the other ranks know: a look and its note in one, or the watch's last look could hide the end."""
        with self._noting:
            self._write(f"state.{self.rank}", json.dumps(self._look()))

    def _write(self, name: str, text: str) -> None:
        new = self.notes / f"{name}.{self.rank}.new"
        new.write_text(text)
        os.replace(new, self.notes / name)


def _has_children() -> bool:
    """Whether this process has any (where the system tells: Linux)."""
    try:
        return any(file.read_text().strip() for file in Path("/proc/self/task").glob("*/children"))
    except OSError:
        return True  # a thread has ended meanwhile


def read_note(path: Path) -> Any:
    """What a rank has written down, if it has."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
