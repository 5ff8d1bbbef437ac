"""Logs to judge: five that are stored, and drawn ones with other ranks, faults, and order of the lines."""

from __future__ import annotations

import random
import signal
from typing import Any

from checks.failures_and_hangs import log_texts
from course import outline

Log = dict[str, Any]  # "name", "text", "kind", who is to blame ("rank", "what"), "first" that torchrun saw
FOLDER = outline.ROOT / "scripts" / "failures" / "logs"
STORED = {
    "a": ("raised", 1, "KeyError", 0),
    "b": ("killed", 2, "SIGKILL", 2),
    "c": ("missing", 2, "missing", 0),
    "d": ("mismatch", 1, "mismatch", 3),
    "e": ("missing for NCCL", 0, "missing", 2),
}
KINDS = ("raised", "raised slowly", "killed", "missing", "mismatch", "missing for NCCL", "mismatch for NCCL")
OF_EACH = 6
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
A_RUNTIME_ERROR = next(error for error in log_texts.OWN if error.startswith("RuntimeError"))
OF_TORCH = next(error for error in log_texts.OWN if error.startswith("torch."))
# Names that do not end in Error, and words that others use who speak of the time or the connection.
ALWAYS = (A_RUNTIME_ERROR, OF_TORCH, *list(log_texts.OWN)[-4:])


def stored() -> list[Log]:
    return [
        {"name": f"log {name}", "text": (FOLDER / f"{name}.txt").read_text(encoding="utf-8"), "kind": kind}
        | {"rank": rank, "what": what, "first": first}
        for name, (kind, rank, what, first) in STORED.items()
    ]


def drawn(rng: random.Random) -> list[Log]:
    usual = [error for error in log_texts.OWN if error not in ALWAYS]
    own = [*rng.sample(usual, OF_EACH), *rng.sample(ALWAYS, len(ALWAYS))]
    logs = []
    for turn in range(OF_EACH):
        for kind in KINDS:
            error = own[turn + OF_EACH * (kind == KINDS[1])]
            logs.append(_Drawn(rng, rng.randint(3, 8), turn).of(kind, turn, error))
    rng.shuffle(logs)
    return [{"name": f"drawn log {number}"} | log for number, log in enumerate(logs, start=1)]


class _Drawn:
    """One launch: who is to blame, and what each of the others says."""

    def __init__(self, rng: random.Random, world: int, turn: int) -> None:
        bad = (0, world - 1)[turn] if turn < 2 else rng.randrange(world)
        self.rng, self.world, self.bad = rng, world, bad
        self.others = [rank for rank in range(world) if rank != self.bad]
        self.first = rng.choice(self.others)
        self.ms, self.batches = rng.choice((4000, 60_000, 1_800_000)), rng.randint(1, 9)
        self.ends = [rng.choice((1, -signal.SIGTERM)) for _ in range(world)]
        self.said: list[list[str]] = [[] for _ in range(world)]

    def of(self, kind: str, turn: int, error: str) -> Log:
        nccl = kind.endswith("NCCL")
        what = kind.split()[0]
        if kind.startswith("raised"):
            what = error.partition(":")[0]
            self.said[self.bad] = log_texts.raised(error, wrapped=turn % 2 == 1)
            self._die(1) if kind == "raised" else self._time_out()
        elif kind == "killed":
            ended_by = SIGNALS[turn % len(SIGNALS)]
            what = ended_by.name
            self._die(-ended_by)
        elif nccl:
            self._watched(alike=what == "missing")
        elif kind == "missing":
            self._time_out()
            if turn < OF_EACH // 2:  # all but the first are stopped, so that it says nothing who was
                self.ends = [-signal.SIGTERM] * self.world
        else:
            self._do_not_match()
        if self.first != self.bad and not nccl:
            self.ends[self.first] = 1
        text = log_texts.put_together(self.rng, self.said, self.ends, self.first, self.batches, nccl)
        return {"text": text, "kind": kind, "rank": self.bad, "what": what, "first": self.first}

    def _die(self, end: int) -> None:
        """At once: the connections of the others are closed. One of them may be stopped before it has noticed."""
        self.ends[self.bad] = end
        if self.rng.random() < 0.6:
            self.first = self.bad
        saves = self.rng.random() < 0.5
        for rank in self.others:
            if rank == self.first or self.rng.random() < 0.8:
                self.said[rank] = log_texts.waited(self._closed(), saves)
            else:
                self.ends[rank] = -signal.SIGTERM

    def _time_out(self) -> None:
        """The others give up, first one, which closes its connections; then torchrun stops who is left."""
        self.ends[self.bad] = -signal.SIGTERM
        for rank in self.others:
            words = self.rng.choice(log_texts.TIMED_OUT).format(ms=self.ms)
            late = rank == self.first or self.rng.random() < 0.7
            self.said[rank] = log_texts.waited(words if late else self._closed())

    def _closed(self) -> str:
        return self.rng.choice(log_texts.CLOSED).format(port=self.rng.randint(1024, 65_535))

    def _do_not_match(self) -> None:
        """Found by TORCH_DISTRIBUTED_DEBUG=DETAIL, on all ranks."""
        size, number = self.rng.randint(2, 5000), self.batches
        usual = ("ALLREDUCE", str(size))
        other = self.rng.choice((("BROADCAST", str(size)), ("ALLREDUCE", str(size + self.rng.randint(1, 900)))))
        prints = [other if rank == self.bad else usual for rank in range(self.world)]
        self.first = self.rng.randrange(self.world)
        self.ends[self.first] = 1
        for rank in range(self.world):
            against = self.bad if rank != self.bad else self.others[0]
            self.said[rank] = log_texts.mismatch(rank, against, prints, number)

    def _watched(self, alike: bool) -> None:
        """NCCL's watchdog ends who has waited for ten minutes; torchrun stops who is left."""
        rng, number = self.rng, self.rng.randint(50, 90_000)
        size = rng.randint(1, 3_000_000)
        usual = ("ALLREDUCE", size)
        other = rng.choice((("BROADCAST", rng.randint(1, 9000)), ("ALLREDUCE", size + rng.randint(1, 900))))
        for rank in range(self.world):
            self.ends[rank] = rng.choice((-signal.SIGABRT, -signal.SIGTERM))
            works = other if rank == self.bad else usual
            self.said[rank] = log_texts.watchdog(rank, *works, number, number + rng.randint(0, 5), rng.randint(1, 99))
        self.ends[self.first] = -signal.SIGABRT
        if alike:
            self.ends[self.bad] = -signal.SIGTERM
            self.said[self.bad] = log_texts.told(self.bad, self.first, number - 1) if rng.random() < 0.5 else []
