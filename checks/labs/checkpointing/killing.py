"""Lives: forked processes that take notes, and that are killed before a chosen step with files or at a chosen byte."""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch.distributed as dist

from checks.engine import refuse
from checks.engine.inside import OpenAnswer, Outcome, outcome_of_any
from checks.engine.verdicts import NotStarted, Wrong, raised_from

STEPS = {"os.rename": "rename", "os.remove": "remove", "os.mkdir": "mkdir", "subprocess.Popen": "a command"}
FULL = OSError(28, "No space left on device")


class Notes:
    """In a life: facts, where the check reads them whatever happens to the process."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 1 << 20)  # (shared with the child; not even a full disk stops it)

    def __call__(self, what: str, **facts: Any) -> None:
        self.memory.write((json.dumps({"what": what, "t": time.monotonic(), **facts}) + "\n").encode())

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.memory[:].rstrip(b"\0").decode().splitlines()]


@dataclass
class Life:
    """What a process noted, and its exit code, or minus the signal that ended it."""

    notes: list[dict[str, Any]]
    ended: int

    def of(self, what: str) -> list[dict[str, Any]]:
        return [note for note in self.notes if note["what"] == what]

    @property
    def killed(self) -> bool:
        return self.ended < 0

    @property
    def failure(self) -> dict[str, str] | None:
        """With what it failed; None: it came to its end, or was killed."""
        return next((note["record"] for note in self.of("failed")), None)

    def raise_failure(self, before: str = "") -> None:
        if self.failure:
            failure = raised_from(self.failure)
            raise failure.saying(before + failure.sentence) if isinstance(failure, Wrong) else failure


def first_failed(lives: Iterable[Life]) -> Life | None:
    """The one that failed first: the others may have failed because of it."""
    return min((life for life in lives if life.failure), key=lambda life: life.of("failed")[0]["t"], default=None)


def live(*bodies: Callable[[Notes], None], seconds: float = 15) -> list[Life]:
    """Run each body in a process of its own. When one of them ends early, the others are killed."""
    notes, pids, ends = [Notes() for _ in bodies], [], dict[int, int]()
    for body, note in zip(bodies, notes, strict=True):
        pids.append(os.fork())
        if pids[-1] == 0:
            _be(body, note)
    until = time.monotonic() + seconds
    while len(ends) < len(pids):
        for pid in pids:
            done, status = (0, 0) if pid in ends else os.waitpid(pid, os.WNOHANG)
            ends |= {pid: os.waitstatus_to_exitcode(status)} if done else {}
        if any(ends.values()) or time.monotonic() > until:
            for pid in set(pids) - set(ends):
                os.kill(pid, signal.SIGKILL)
                ends[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.001)
    words = "it stands still: does one of them not take part in a collective that the others call?"
    refuse(time.monotonic() > until, words if bodies[1:] else "it never ends: is there a loop without an end?")
    return [Life(note.all(), ends[pid]) for pid, note in zip(pids, notes, strict=True)]


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


def join(store: str, rank: int, size: int) -> None:
    """In a forked process: forget the check's own process group, whose threads are not here, and join a new one."""
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


class Steps:
    """In a life, from now on: each step with files is noted, and before some of them the process dies.

    Args:
        path: whose file's number (inode) is noted at each step.
        fails: "file" or "folder": the first fsync of it hears that the disk is full.
    """

    def __init__(self, note: Notes, path: str = "", fails: str = "", pauses: float = 0) -> None:
        self.note, self.path, self.fails, self.pauses = note, os.path.abspath(path), fails, pauses
        self.left, self.unreadable = -1, ""  # so many steps more, and then it dies; a file that no one can open

    def seen(self, answer: Any) -> Any:
        """The answer, all of whose steps are seen (``from os import fsync`` gets the watched one, too)."""
        opened = isinstance(answer, OpenAnswer)
        text = cloudpickle.dumps(answer.function if opened else answer)
        for name in {"fsync", "fdatasync", "sync"} & set(vars(os)):
            watched = self._watched(name, getattr(os, name))
            for module in (os, sys.modules[os.name]):
                setattr(module, name, watched)
        sys.addaudithook(self._audit)
        again = cloudpickle.loads(text)
        return OpenAnswer(answer.name, again, answer.files) if opened else again

    def step(self, name: str, **facts: Any) -> None:
        if self.left == 0:
            die()
        self.left -= 1
        now = os.stat(self.path).st_ino if os.path.exists(self.path) else 0
        self.note("files", name=name, now=now, **facts)

    def _watched(self, name: str, real: Callable[..., None]) -> Callable[..., None]:
        def watched(*file: Any) -> None:
            found = os.fstat(file[0] if isinstance(file[0], int) else file[0].fileno()) if file else None
            kind = "all" if found is None else "folder" if stat.S_ISDIR(found.st_mode) else "file"
            self.step("fsync", kind=kind, inode=found and found.st_ino, size=found and found.st_size)
            if kind == self.fails:
                self.fails = ""
                self.note("fails")
                raise FULL
            real(*file)

        return watched

    def _audit(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and self.unreadable and os.path.abspath(os.fsdecode(given[0])) == self.unreadable:
            raise OSError(5, "Input/output error", self.unreadable)
        if event == "open" and isinstance(given[0], str | bytes) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            if given[2] & os.O_DSYNC:
                self.step("fsync", kind="all")
            elif not os.fsdecode(given[0]).startswith(("/dev/", "/proc/")):
                self.step("open", at=os.fsdecode(given[0]))
        elif event == "subprocess.Popen" and os.path.basename(os.fsdecode(given[1][0])) == "sync":
            self.step("fsync", kind="all")
        elif event in STEPS:
            time.sleep(self.pauses if event == "os.rename" else 0)
            self.step(STEPS[event])
