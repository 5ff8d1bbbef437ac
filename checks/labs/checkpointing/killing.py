"""Lives: forked processes that take notes, and that are killed before a step with files or at a byte of a file."""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import cloudpickle
import torch.distributed as dist

from checks.engine.inside import OpenAnswer, Outcome, outcome_of_any
from checks.engine.verdicts import NotStarted, Wrong, raised_from


class Notes:
    """In a life: facts, in memory that the check shares. Neither a kill nor a full disk stops them."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 1 << 20)

    def __call__(self, what: str, **facts: Any) -> None:
        self.memory.write((json.dumps({"what": what, "t": time.monotonic(), **facts}) + "\n").encode())


@dataclass
class Life:
    """What a process noted, and its exit code, or minus the signal that ended it."""

    notes: list[dict[str, Any]]
    ended: int

    def of(self, what: str) -> list[dict[str, Any]]:
        return [note for note in self.notes if note["what"] == what]


def raise_first(lives: list[Life], before: str = "") -> None:
    """Raise the first failure: the others may have failed because of it."""
    for note in sorted((note for life in lives for note in life.of("failed")), key=lambda note: note["t"]):
        raise raised_from(note["record"] | {"sentence": before + note["record"]["sentence"]})


def live(*bodies: Callable[[Notes], None], seconds: float = 15) -> list[Life]:
    """Run each body in a process of its own. When one of them ends early, the others are killed."""
    notes, fork, late = [Notes() for _ in bodies], multiprocessing.get_context("fork"), False
    team = [fork.Process(target=_be, args=pair) for pair in zip(bodies, notes, strict=True)]
    for process in team:
        process.start()
    until = time.monotonic() + seconds
    while alive := [process for process in team if process.is_alive()]:
        connection.wait([process.sentinel for process in alive], max(0.0, until - time.monotonic()))
        late = late or time.monotonic() > until
        if late or any(process.exitcode for process in team):
            for process in alive:
                process.kill()
                process.join()
    texts = [note.memory[:].rstrip(b"\0").decode().splitlines() for note in notes]
    lives = [Life([*map(json.loads, text)], process.exitcode or 0) for text, process in zip(texts, team, strict=True)]
    words = "it stands still: does one of them not take part in a collective that the others call?"
    words = words if bodies[1:] else "it never ends: is there a loop without an end?"
    lives[0].notes += [{"what": "failed", "t": until, "record": Wrong(words).record}] * late
    return lives


def _be(body: Callable[[Notes], None], note: Notes) -> None:
    code = 1
    try:
        body(note)
        code = 0
    except (Outcome, Wrong, NotStarted) as error:
        note("failed", record=error.record)
    except BaseException as error:
        note("failed", record=outcome_of_any(error).record)
    finally:
        os._exit(code)


def overheard(answer: Any, hear: Callable[[str, Any], None]) -> Any:
    """In a life: the answer, before each of whose steps with files ``hear`` is called, ``from os import fsync`` too."""
    text = cloudpickle.dumps(getattr(answer, "function", answer))
    real, everything = os.fsync, os.sync

    def fsync(file: Any) -> None:
        hear("fsync", file if isinstance(file, int) else file.fileno())
        real(file)

    def sync() -> None:
        hear("fsync", None)
        everything()

    for module in (os, sys.modules[os.name]):
        module.fsync = module.fdatasync = fsync  # type: ignore[attr-defined]
        module.sync = sync  # type: ignore[attr-defined]
    events = "open", "os.rename", "os.remove", "os.mkdir"
    sys.addaudithook(lambda event, given: hear(event, given[0]) if event in events else None)
    again = cloudpickle.loads(text)
    return OpenAnswer(answer.name, again, answer.files) if isinstance(answer, OpenAnswer) else again


def join(store: str, rank: int, size: int) -> None:
    """In a life: forget the check's own process group, whose threads are not here, and join a new one."""
    inner = dist.distributed_c10d
    _kept.append((inner._world, inner.GroupMember.WORLD))  # never destroyed: that would wait for threads
    inner._world, inner.GroupMember.WORLD = inner._World(), None  # type: ignore[assignment]
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    dist.barrier()


_kept: list[Any] = []


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def limit(size: int, fatal: bool = True) -> None:
    """Whoever writes a file beyond this size is killed, or hears that the disk is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if fatal else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
