"""A training on several workers in which accidents happen. Who counts its epochs is the process of the check.

Each worker holds an ``Epoch``, which asks here and waits for the others, as workers of a real training do in every
all-reduce. So the check knows which processes have trained which epoch, and from which state; and it can kill one.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from checks.ray_and_tuning.office import Office, Refused, ask

PATIENCE = 30.0  # seconds until the last worker of a group asks for its epoch
BEFORE_ACCIDENT = 1.5  # seconds in which Ray hears of the epoch before


@dataclass
class Team(Office):
    """The workers of one call of the learner's function.

    Args:
        workers: how many train.
        epochs: how many there are.
        accidents: the epochs, counted from 1, in which a worker is killed, one after the other.
        finished: epochs that calls before have finished with the same storage.
        secret: of the states.
    """

    workers: int
    epochs: int
    accidents: Sequence[int]
    finished: int
    secret: int
    begun: list[int] = field(default_factory=list)  # after how many epochs each group of workers begins
    killed: list[int] = field(default_factory=list)
    here: int = 0  # the process that the learner's function runs in

    def __post_init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._members: set[int] = set()
        self._waiting: dict[int, int] = {}

    def state(self, done: int) -> str:
        """What ``epoch`` returns after so many epochs."""
        return f"state {hashlib.blake2b(f'{self.secret} {done}'.encode(), digest_size=8).hexdigest()}"

    def loss(self, done: int) -> float:
        """After so many epochs. That of the last one lies between those before: neither the lowest nor the highest."""
        left = self.epochs - done
        return int(self.state(done)[-6:], 16) / 2**24 + (1, 0, 2)[min(left, 2)]

    def answer(self, asked: Any, pid: int) -> dict[str, Any]:
        pid = pid or int(asked["pid"])
        with self._changed:
            if asked.get("here"):
                self.here = pid
                return {}
            if self.refused:  # the first sentence counts
                raise Refused(self.refused[0])
            return self._epoch(asked["state"], pid)

    def _epoch(self, state: Any, pid: int) -> dict[str, Any]:
        if pid == self.here:
            raise Refused("an epoch runs in your function's own process: let Ray Train's workers call it")
        states = [None, *(self.state(done) for done in range(1, self.epochs + 1))]
        if state not in states:
            raise Refused(f"epoch is given {str(state)[:60]!r}, which is none of the states that it has returned")
        done = states.index(state)
        if done == self.epochs:
            raise Refused(f"there are more than the {self.epochs} epochs that were asked for")
        if pid not in self._members:
            self._join(done, pid)
        elif done != self.finished:
            raise Refused(
                f"a worker hands in the state after epoch {done} where epoch {self.finished} was the last one"
            )
        self._waiting[pid] = done
        return self._last(done) if len(self._waiting) == self.workers else self._wait(done, pid)

    def _join(self, done: int, pid: int) -> None:
        """A new worker. The first one of a group says after which epoch it begins."""
        if len(self._members) == self.workers:
            raise Refused(f"there are more workers than the {self.workers} that were asked for")
        if not self._members:
            if done < self.finished - 1:
                lost = f"{self.finished} epochs were finished, and the workers begin after {done}"
                when = "after the accident" if self.killed else "called again with the same storage"
                raise Refused(f"{when}, epochs are trained again that had been finished: {lost}")
            if done > self.finished:
                kept = f"the workers begin after {done} epochs, and nothing is kept there yet"
                raise Refused(f"called with another storage, a training begins anew: {kept}")
            self.begun.append(done)
            self.finished = done
        elif done != self.begun[-1]:
            raise Refused(
                f"one worker begins after {self.begun[-1]} epochs, another after {done}: all get the same state"
            )
        self._members.add(pid)

    def _last(self, done: int) -> dict[str, Any]:
        """All workers are here: the epoch is trained, or one of them is killed in it."""
        pids = sorted(self._waiting)
        self._waiting = {}
        if [done + 1] == list(self.accidents[len(self.killed) :][:1]):
            time.sleep(BEFORE_ACCIDENT if done > self.begun[-1] else 0)
            self.killed.append(pids[self.secret % len(pids)])
            self._members = set()
            os.kill(self.killed[-1], signal.SIGKILL)
            self._changed.notify_all()
            return {"crashed": "a worker of this group is gone"}
        self.finished = done + 1
        self._changed.notify_all()
        return self._result(done)

    def _wait(self, done: int, pid: int) -> dict[str, Any]:
        here = self._changed.wait_for(lambda: pid not in self._waiting or self.refused, PATIENCE)
        if not here:
            came = f"{len(self._waiting)} of {self.workers} workers came"
            raise Refused(f"an epoch needs all workers, and waits for them: to epoch {done + 1}, {came}")
        if self.refused:
            raise Refused(self.refused[0])
        return {"crashed": "a worker of this group is gone"} if self.finished == done else self._result(done)

    def _result(self, done: int) -> dict[str, Any]:
        return {"loss": self.loss(done + 1), "state": self.state(done + 1)}


@dataclass(frozen=True)
class Epoch:
    """``epoch(state)`` for learners: one epoch of this worker's share. Can be pickled."""

    path: str = field(repr=False)

    def __call__(self, state: str | None = None) -> tuple[float, str]:
        """Train one epoch, together with all other workers.

        Args:
            state: what the epoch before has returned; None in the first one.

        Returns:
            The loss, and the state to go on from, the same on all workers.

        Raises:
            RuntimeError: a worker of the group is gone.
        """
        answer = ask(self.path, {"state": state, "pid": os.getpid()}, PATIENCE + 20)
        return answer["loss"], answer["state"]


def register(paths: Sequence[str]) -> None:
    """In the process that the learner's function runs in: epochs are trained elsewhere."""
    for path in paths:
        ask(path, {"here": True, "pid": os.getpid()}, PATIENCE)
