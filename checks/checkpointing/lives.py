"""Processes that are killed: forked from a rank, watched at every step they take with files, and read out.

A ``Watch`` in the process notes which files are opened for writing, synced, renamed and removed (Python's audit events,
and a ``fsync`` that takes notes; what else happens in a folder, the system tells). It can end the process before any of
these, or at any byte (a largest file size).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import stat
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from checks.checkpointing.folder_events import FolderEvents
from checks.inside import Outcome
from checks.verdicts import NotStarted, Wrong

LOOK, STILL = 0.5, 10  # seconds between two looks, and so many looks without a note or any computing are a standstill
TICK = 0.01  # seconds, after which what is written has a later time
FAILED = 3  # exit code of a process whose answer raised
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_fsync, _fdatasync, _write = os.fsync, getattr(os, "fdatasync", os.fsync), os.write


@dataclass
class Life:
    """What one process did. ``ended``: its exit code, or minus the signal that ended it; None if it never ended."""

    notes: list[dict[str, Any]] = field(default_factory=list)
    ended: int | None = None

    def of(self, what: str) -> list[dict[str, Any]]:
        return [note for note in self.notes if note["what"] == what]

    def written_outside(self, folder: str) -> list[str]:
        """Files that were opened for writing, named with a whole path, elsewhere than in the folder."""
        paths = [os.path.realpath(note["path"]) for note in self.of("open") if os.path.isabs(note["path"])]
        return [path for path in paths if not path.startswith(f"{folder}/")]


class Watch:
    """Inside a process: takes notes, and kills it where it is told to."""

    def __init__(self, pipe: int) -> None:
        self.pipe, self.left, self.pauses = pipe, -1, [0.0]
        self.broken_sync = ""  # whose first fsync fails: that of "a file" or "the folder"
        self.folder: FolderEvents | None = None
        self.place = ""  # the folder's path

    def note(self, what: str, **facts: Any) -> None:
        _write(self.pipe, (json.dumps({"what": what, "t": time.monotonic(), **facts}) + "\n").encode())

    def files(self, answer: Any, folder: str = "") -> None:
        """From here on, note what happens to files, and to the names in a folder."""
        sys.dont_write_bytecode = True
        self.folder, self.place = FolderEvents(folder) if folder else None, folder
        sys.addaudithook(self._audit)
        for name, real in (("fsync", _fsync), ("fdatasync", _fdatasync)):

            def noted(fd: Any, real: Callable[[int], None] = real) -> None:
                number = fd if isinstance(fd, int) else fd.fileno()
                found = os.fstat(number)
                folder, facts = stat.S_ISDIR(found.st_mode), {"ino": found.st_ino, "written": found.st_mtime_ns}
                self._event("fsync", size=found.st_size, folder=folder, **facts)
                if self.broken_sync == ("the folder" if folder else "a file"):
                    self.broken_sync = ""
                    raise OSError(28, "No space left on device")
                real(number)
                if not folder:
                    time.sleep(TICK)

            self._replace(answer, real, noted, name)
        if hasattr(os, "sync"):

            def all_noted(real: Callable[[], None] = os.sync) -> None:
                self._event("sync", sizes=self._sizes(folder))
                real()

            self._replace(answer, os.sync, all_noted, "sync")

    @staticmethod
    def _replace(answer: Any, real: Any, noted: Any, name: str) -> None:
        """In os, and in the answer's own names: ``from os import fsync``, ``def save(state, path, sync=os.fsync)``.

        Also in its classes, and in functions and classes that its functions hold.
        """
        setattr(os, name, noted)
        names = getattr(answer.function, "__globals__", {})
        names.update({key: noted for key, value in names.items() if value is real})
        things, seen = [answer.function, *names.values()], set()
        while things:
            if id(one := things.pop()) in seen:
                continue
            seen.add(id(one))
            if isinstance(one, type) and one.__module__ == answer.function.__module__:
                for key, value in [(key, getattr(value, "__func__", value)) for key, value in vars(one).items()]:
                    things.append(value)
                    if value is real:
                        setattr(one, key, staticmethod(noted))
            if not isinstance(one, types.FunctionType):
                continue
            one.__defaults__ = tuple(noted if value is real else value for value in one.__defaults__ or ()) or None
            for key in [key for key, value in (one.__kwdefaults__ or {}).items() if value is real]:
                one.__kwdefaults__[key] = noted
            for cell in one.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty one
                    things.append(cell.cell_contents)
                    if cell.cell_contents is real:
                        cell.cell_contents = noted

    @staticmethod
    def _sizes(folder: str) -> dict[str, int]:
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            return {str(entry.inode()): entry.stat().st_size for entry in entries}
        return {}

    def kill_before(self, events: int) -> None:
        """Kill the process before one more event than that."""
        self.left = events

    def limit(self, size: int, fatal: bool = True) -> None:
        """Kill the process when it writes a file beyond this size (bytes), or let the write fail."""
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if fatal else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    def _audit(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[0], str | bytes) and given[2] & _WRITES:
            path = os.fsdecode(given[0])
            if path.startswith("/dev/shm/") or not path.startswith(("/dev/", "/proc/")):
                self._event("open", path=path, synced=bool(given[2] & os.O_DSYNC))
        elif event == "subprocess.Popen" and os.path.basename(os.fsdecode(given[1][0])) == "sync":
            self._event("sync", sizes=self._sizes(self.place))
        elif event == "os.rename":
            source, target = (_whole_path(path, number) for path, number in zip(given[:2], given[2:4], strict=True))
            time.sleep(self.pauses[0])
            self.pauses = [*self.pauses[1:], self.pauses[0]]
            self._event("rename", source=source, target=target)
        elif event == "os.remove":
            self._event("remove", path=os.path.abspath(os.fsdecode(given[0])))

    def _event(self, what: str, **facts: Any) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        self.names()
        self.note(what, **facts)

    def names(self) -> None:
        """Note what has happened to the names in the folder."""
        for entry in self.folder.new() if self.folder else ():
            self.note("entry", **entry)


def _whole_path(path: Any, folder: int) -> str:
    """Of a path that a call got, maybe with ``dir_fd=``."""
    with contextlib.suppress(OSError):
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else "", os.fsdecode(path))
    return os.path.abspath(os.fsdecode(path))


def live(*bodies: Callable[[Watch], None], seconds: float = 30) -> list[Life]:
    """Run each body in a forked process of its own; when one ends before it is done, or all stand still, kill the rest.

    Args:
        bodies: called in the process with its ``Watch``.
        seconds: after that all are killed, at the latest; ``ended`` of those that had not ended is None.
    """
    lives, pids, chooser = [Life() for _ in bodies], [], selectors.DefaultSelector()
    for number, body in enumerate(bodies):
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be(body, theirs)
        os.close(theirs)
        pids.append(pid)
        chooser.register(ours, selectors.EVENT_READ, number)
    texts, open_pipes, end = [b""] * len(bodies), len(bodies), time.monotonic() + seconds
    waiting = set(range(len(bodies)))
    worked, still = -1.0, 0
    while open_pipes:
        ready = chooser.select(min(LOOK, max(0.0, end - time.monotonic())))
        if not ready and time.monotonic() < end:
            before, worked = worked, sum(_computed(pids[number]) for number in waiting)
            still = still + 1 if worked == before else 0
            if still < STILL:
                continue
        still = 0
        for key, _ in ready:
            if data := os.read(key.fd, 1 << 16):
                texts[key.data] += data
                continue
            chooser.unregister(key.fd)
            os.close(key.fd)
            open_pipes -= 1
            lives[key.data].ended = os.waitstatus_to_exitcode(os.waitpid(pids[key.data], 0)[1])
            waiting.discard(key.data)
            if lives[key.data].ended != 0:
                _kill(pids[other] for other in waiting)
        if not ready:
            _kill(pids[other] for other in waiting)
            for number in waiting:
                os.waitpid(pids[number], 0)
            break
    for key in list(chooser.get_map().values()):
        os.close(key.fd)
    for life, text in zip(lives, texts, strict=True):
        life.notes = [json.loads(line) for line in text.decode().split("\n")[:-1]]
    return lives


def _be(body: Callable[[Watch], None], pipe: int) -> None:
    watch, code = Watch(pipe), FAILED
    try:
        body(watch)
        code = 0
    except (Outcome, Wrong, NotStarted) as error:
        watch.note("failed", record=error.record)
    except BaseException as error:
        watch.note("failed", record={"kind": "wrong", "sentence": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(code)


def _computed(pid: int) -> float:
    """Seconds of a core that a process has used; where the system does not tell, the time."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return time.monotonic()


def _kill(pids: Any) -> None:
    for pid in list(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def first_failure(lives: list[Life]) -> dict[str, str] | None:
    """The record of the process that failed first (the others may have failed because of it)."""
    failed = [note for life in lives for note in life.of("failed")]
    return min(failed, key=lambda note: note["t"])["record"] if failed else None


def join_group(store: str, rank: int, size: int) -> None:
    """In a forked process: forget the rank's own process group, whose threads are not here, and join a new one."""
    import torch.distributed as dist

    inner = dist.distributed_c10d
    _kept.append((inner._world, inner.GroupMember.WORLD))  # never destroyed: that would wait for threads
    inner._world, inner.GroupMember.WORLD = inner._World(), None
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    dist.barrier()


_kept: list[Any] = []
