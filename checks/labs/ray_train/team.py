"""``epoch``: workers wait for each other in it, as in every all-reduce, and one of them is killed.

They get this module by value (see ``ray_and_tuning/rays.py``). What they do stands in notes that all of them share.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from checks.labs.ray_and_tuning.notes import misused, opened

LOSSES = (1.9, 1.2, 0.9, 0.4, 1.4, 0.7)  # of all epochs; the last one is neither the lowest nor the highest
PATIENCE = 30.0  # seconds until the last worker of a group comes to its epoch
BEFORE_ACCIDENT = 1.5  # seconds in which Ray hears of the epoch before
STATES = [None, *(f"the weights after epoch {number}" for number in range(1, len(LOSSES) + 1))]


@dataclass(frozen=True)
class Epoch:
    """``epoch(state)`` for learners: one epoch of this worker's share. Can be pickled."""

    path: str  # of the notes
    workers: int
    accident: int  # the epoch in which a worker is killed
    finished: int  # epochs that calls before have finished with the same storage
    own: int  # the process that the learner's function runs in

    def __call__(self, state: str | None = None) -> tuple[float, str]:
        """Train one epoch, together with all other workers: its loss, and the state to go on from."""
        with opened(self.path) as notes:
            group = sum("killed" in note for note in notes)
            if words := self.refusal(notes, group, state):
                misused(notes, words)
            done = STATES.index(state)
            notes.append({"group": group, "done": done, "pid": os.getpid()})
        self._meet(group, done)
        return LOSSES[done], STATES[done + 1]

    def done(self, notes: list[dict[str, Any]]) -> int:
        """How many epochs are finished by now: all workers came to them, and none was killed."""
        came = [(note["group"], note["done"]) for note in notes if "done" in note]
        lost = [(note["killed"], self.accident - 1) for note in notes if "killed" in note]
        whole = [one[1] + 1 for one in came if came.count(one) == self.workers and one not in lost]
        return max([self.finished, *whole])

    def refusal(self, notes: list[dict[str, Any]], group: int, state: Any) -> str:
        """Why this worker does not train this epoch; "" if it does."""
        if os.getpid() == self.own:
            return "an epoch runs in your function's own process: let Ray Train's workers call it"
        if state not in STATES[:-1]:
            return f"epoch is given {str(state)[:60]!r}: that is no state from which an epoch that is asked for begins"
        came, done, finished = [n for n in notes if n.get("group") == group], STATES.index(state), self.done(notes)
        own = max((note["done"] + 1 for note in came if note["pid"] == os.getpid()), default=0)
        if own and done != own:
            return f"a worker hands in the state after epoch {done} where epoch {own} was the last one"
        if not came and done < finished - 1:
            when = "after the accident" if group else "called again with the same storage"
            lost = f"{finished} epochs were finished, and the workers begin after {done}"
            return f"{when}, epochs are trained again that had been finished: {lost}"
        if came and not own and done != came[0]["done"]:
            return f"one worker begins after {came[0]['done']} epochs, another after {done}: all get the same state"
        return ""

    def _meet(self, group: int, done: int) -> None:
        """Wait for all workers of the group. In an accident the first one dies, and the others hear of it."""
        accident, deadline = not group and done + 1 == self.accident, time.monotonic() + PATIENCE
        while True:
            with opened(self.path) as notes:
                here = [note["pid"] for note in notes if (note.get("group"), note.get("done")) == (group, done)]
                if any("refused" in note or note.get("killed") == group for note in notes):
                    raise RuntimeError("a worker of this group is gone")
                if len(here) < self.workers and time.monotonic() > deadline:
                    words = f"an epoch needs all workers, and waits for them: to epoch {done + 1}, "
                    misused(notes, f"{words}{len(here)} of {self.workers} workers came")
            if len(here) >= self.workers and not accident:
                return
            if len(here) >= self.workers and here[0] == os.getpid():
                time.sleep(BEFORE_ACCIDENT)
                with opened(self.path) as notes:
                    notes.append({"killed": group})
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.02)
