"""How rank processes come to life: forked from the zygote (fast), or spawned as fresh interpreters (anywhere)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO

from utils.ranks.errors import RanksInterrupted
from utils.ranks.lifetimes import ended_child, kill_group, send_signal
from utils.ranks.locate import ROOT
from utils.ranks.wire import Channel, Message, pair, wait_for

_PROGRAM = "import sys; sys.path.insert(0, {parent!r}); from {package}.{module} import {main}; {main}({argument})"


def default_method() -> str:
    """``fork`` where it is safe (Linux), else ``spawn``; the environment variable RANKS_START overrides."""
    asked = os.environ.get("RANKS_START")
    if asked in ("fork", "spawn"):
        return asked
    return "fork" if sys.platform == "linux" else "spawn"


class CannotFork(RuntimeError):
    """The zygote could not fork safely; the text says why."""


class Zygote:
    """The notebook's side of the process that imports torch once and forks ranks."""

    def __init__(self) -> None:
        self._channel, theirs = pair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._process = _python("zygote.main", str(theirs.fileno()), [theirs.fileno()], self._errors)
        theirs.close()
        self.pid = self._process.pid
        self.threads: int | None = None
        self._answers: dict[int, Message] = {}  # to requests for a fork, by their tickets
        self._exits: dict[int, int] = {}
        self._tickets = 0
        self._preloaded: set[str] = set()

    @property
    def alive(self) -> bool:
        return not self._channel.eof and self._process.poll() is None

    def channel(self) -> Channel | None:
        """What becomes readable when a process has ended, if there is such a thing."""
        return self._channel

    def start(self, fds: list[int], interrupted: Callable[[], bool]) -> int:
        """Start one rank that owns these file descriptors; return its pid.

        Raises:
            OSError: the system has no room for one more.
            RanksInterrupted: ``interrupted()``, asked now and then, has become true.
        """
        self._tickets += 1
        ticket = self._tickets
        send_signal(self.pid, signal.SIGCONT)  # a rank may have stopped it: it is the ranks' parent
        self._channel.send_with_fds({"do": "fork", "ticket": ticket}, tuple(fds))
        deadline = time.monotonic() + 120
        while ticket not in self._answers:
            if interrupted():  # (a rank that comes later finds nobody at the other end, and goes)
                raise RanksInterrupted("the start of the ranks was interrupted", "")
            wait_for([self._channel], 0.1)
            self._read()
            if not self.alive:
                raise RuntimeError(f"The process that imports torch for the ranks ended. {self._last_words()}")
            if time.monotonic() > deadline:
                raise RuntimeError("The process that imports torch for the ranks did not answer in 120 s.")
        answer = self._answers.pop(ticket)
        if answer["event"] == "refused":
            raise CannotFork(answer["reason"])
        if answer["event"] == "failed":
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return int(answer["pid"])

    def exit_code(self, pid: int) -> int | None:
        """How the process ended (negative: the signal's number), None while it lives."""
        self._read()
        if pid not in self._exits and not self.alive:
            return -signal.SIGKILL  # ranks do not outlive the zygote
        return self._exits.get(pid)

    def forget(self, pid: int) -> None:
        """The world of this rank is closed."""
        send_signal(self.pid, signal.SIGCONT)
        self._exits.pop(pid, None)

    def preload(self, *modules: str) -> None:
        """Ranks that are started later will need these modules: import them once, before, if that helps."""
        if new := [module for module in modules if module not in self._preloaded]:
            self._preloaded.update(new)
            try:
                self._channel.send({"do": "preload", "modules": new})
            except OSError:
                pass  # it is gone; whoever needs it next finds out

    def close(self) -> None:
        """End the zygote, and with it every rank."""
        self._channel.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _read(self) -> None:
        if self._channel.eof:
            return
        for message, _ in self._channel.take():  # (whole, also for two threads that look at their worlds)
            if message["event"] == "ready":
                self.threads = message["threads"]
            elif message["event"] == "exit":
                self._exits[message["pid"]] = message["code"]
            else:
                self._answers[message["ticket"]] = message
                self._exits.pop(message.get("pid", 0), None)  # of another process that had this number before

    def _last_words(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        return f"Its last words:\n{text[-2000:]}" if text else ""


class Spawner:
    """Starts each rank as a fresh Python: slower, but needs no fork. It is asked as ``Zygote`` is."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._guardian: tuple[Channel, subprocess.Popen[bytes]] | None = None

    def channel(self) -> None:
        return None

    def start(self, fds: list[int], interrupted: Callable[[], bool]) -> int:
        process = _python("rank.main", repr(fds), fds, None)
        self._processes[process.pid] = process
        self._tell_guardian("guard", process.pid)
        return process.pid

    def exit_code(self, pid: int) -> int | None:
        process = self._processes.get(pid)
        if process is None:
            return -signal.SIGKILL
        with self._lock:
            try:
                if process.returncode is None and ended_child(pid):
                    self._end(process)
            except ChildProcessError:
                process.poll()  # somebody else has waited for it
        return process.returncode

    def forget(self, pid: int) -> None:
        process = self._processes.pop(pid, None)
        with self._lock:
            if process is not None and process.returncode is None:
                self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End it and what it leaves behind, and let go of its number: once, for then that may be a stranger's."""
        kill_group(process.pid)
        process.wait()
        self._tell_guardian("forget", process.pid)

    def preload(self, *modules: str) -> None:
        pass  # each spawned rank imports for itself

    def close(self) -> None:
        """End the guardian, and with it every rank."""
        if self._guardian is not None:
            channel, process = self._guardian
            channel.close()
            process.wait()
            self._guardian = None

    def _tell_guardian(self, what: str, pid: int) -> None:
        if self._guardian is None or self._guardian[1].poll() is not None:
            channel, theirs = pair()
            process = _python("lifetimes.guard", str(theirs.fileno()), [theirs.fileno()], None)
            theirs.close()
            self._guardian = channel, process
            for known in [pid for pid, process in self._processes.items() if process.returncode is None]:
                channel.send({"do": "guard", "pid": known})
        self._guardian[0].send({"do": what, "pid": pid})


Starter = Zygote | Spawner

_lock = threading.Lock()
_zygote: Zygote | None = None
_spawner = Spawner()


def warm_up() -> None:
    """Start the zygote now, so that torch is imported by the time a cell needs ranks."""
    if default_method() == "fork":
        starter("fork")


def starter(method: str) -> Starter:
    """The starter for ``fork`` or ``spawn``; one zygote serves all worlds of this process."""
    global _zygote
    if sys.platform == "win32":
        raise RuntimeError("Cells on ranks need Linux or macOS. On Windows, run the course inside WSL2.")
    if method == "spawn":
        return _spawner
    with _lock:
        if _zygote is None or not _zygote.alive:
            _zygote = Zygote()
        return _zygote


def shut_down() -> None:
    """End the zygote and the guardian (ranks end with them)."""
    global _zygote
    _spawner.close()
    with _lock:
        if _zygote is not None:
            _zygote.close()
            _zygote = None


def _forget_parents_processes() -> None:
    global _zygote, _spawner, _lock
    _zygote, _spawner, _lock = None, Spawner(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_processes)


def _python(function: str, argument: str, fds: list[int], stderr: IO[bytes] | None) -> subprocess.Popen[bytes]:
    module, main = function.split(".")
    program = _PROGRAM.format(parent=str(ROOT), package=__package__, module=module, main=main, argument=argument)
    return subprocess.Popen(
        [sys.executable, "-c", program],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,  # a terminal's Ctrl-C goes to the notebook, which passes it on
    )
