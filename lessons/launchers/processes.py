"""Programs that helpers start: found by a mark, watched, read, and ended, so that no process is left."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

_LAST_LINES = 12
BUSY = 0.2  # seconds of a core in each second: who waits needs less, who imports or computes needs more


def kill_all(find: Callable[[], Sequence[psutil.Process]]) -> None:
    """SIGKILL for all that ``find`` finds, until it finds none: a process may start another meanwhile."""
    while found := [process for process in find() if not _is_zombie(process)]:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)  # killing takes the system a moment


def new_mark() -> str:
    """For an environment variable that tells a run's processes from others: our pid, and a random part."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"


def start(command: Sequence[str], env: Mapping[str, str], output: Any) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own; all that it says goes to an open file."""
    files = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=env, start_new_session=True, **files)


@contextlib.contextmanager
def helper(command: Sequence[str], env: Mapping[str, str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program of ours that ends itself, and all that it looks after, when its standard input is closed.

    That happens at the end of the block, and when this process dies, however it does.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=env, start_new_session=True, **pipes | options)
    try:
        yield process
    finally:
        process.communicate()


@contextlib.contextmanager
def launched(
    command: Sequence[str], name: str, mark: str, env: Mapping[str, str], output: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher that runs in the body of ``with``; at its end, all that it has started is killed.

    Args:
        name, mark: the environment variable, and its value, by which those processes are found.
        env: the other environment variables.
        output: an open file for what it prints.
    """
    launcher = start(command, {**env, name: mark}, output)
    try:
        yield launcher
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        kill_all(lambda: marked(name, mark))
        launcher.wait()


def watch(
    programs: Mapping[Any, subprocess.Popen[bytes]],
    last: Collection[Any],
    timeout: float,
    grace: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until the ``last`` of the programs have ended, or others had their grace.

    Args:
        timeout: seconds for everything.
        grace: seconds that others get when one has failed.
        stop: asked again and again whether to wait no longer.

    Returns:
        False if the time was over, or ``stop`` said so.
    """
    now = time.monotonic()
    end, grace_over = now + timeout, math.inf
    while now < grace_over and any(programs[one].poll() is None for one in last):
        if now > end or stop():
            return False
        if any(program.poll() for program in programs.values()):
            grace_over = min(grace_over, now + grace)
        time.sleep(0.01)
        now = time.monotonic()
    return True


def marked(name: str, mark: str, **others: str) -> list[psutil.Process]:
    """Processes in whose environment the variable ``name`` begins with ``mark``, and others have these values."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            if environment.get(name, "").startswith(mark) and others.items() <= environment.items():
                found.append(process)
    return found


class Activity:
    """When the processes with a mark last had something to compute, so that those that wait for ever are found.

    A limit in seconds would have to be long on a machine that is busy with other work. Who waits for others computes
    nearly nothing; who imports or trains computes, and if the machine is busy, it computes later.

    Attributes:
        worked: seconds of a processor that they have used since they were first looked at.
    """

    def __init__(self, name: str, mark: str) -> None:
        self._name, self._mark = name, mark
        self._busy = self._looked = time.monotonic()
        self._used: dict[int, float] = {}
        self.worked = 0.0

    def seconds_ago(self) -> float:
        """Ask again and again; the processes are looked at once a second."""
        now = time.monotonic()
        if now - self._looked > 1:
            before, self._used = self._used, {}
            for process in marked(self._name, self._mark):
                with contextlib.suppress(psutil.Error):
                    self._used[process.pid] = sum(process.cpu_times()[:2])
            worked = sum(used - before.get(pid, 0.0) for pid, used in self._used.items())
            self.worked += worked
            if worked > BUSY * (now - self._looked):
                self._busy = now
            self._looked = now
        return now - self._busy


def clean_environment() -> dict[str, str]:
    """This process's environment without what a launcher has set, for programs that ranks are started with.

    Gloo's traffic goes over loopback, ``utils`` is found, and ``python`` and ``torchrun`` are this process's own.
    """
    launched = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "PET_", "SLURM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
    package = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    if sys.platform in ("linux", "darwin"):
        environment["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    return environment


def read(file: str | Path) -> str:
    """What a program has written to a file; nothing if it is not there."""
    file = Path(file)
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def tail(text: str) -> str:
    """The last lines of what a program has said, for an error's text."""
    return "\n".join(text.strip().splitlines()[-_LAST_LINES:])


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True
