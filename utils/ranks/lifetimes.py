"""Who lives how long: ending processes that may be gone already, and ending when whoever started us dies."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from typing import NoReturn

from utils.ranks.wire import Channel

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of <sys/prctl.h>


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process; nothing happens if it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def kill_group(pid: int) -> None:
    """End every process in this process group at once; nothing happens if there is none left."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def ended_child(pid: int | None = None) -> int:
    """This child, or any, if it has ended and nobody has waited for it: its number is not free yet. 0: none.

    Raises:
        ChildProcessError: this child has been waited for.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        import psutil

        try:
            children = psutil.Process().children() if pid is None else [psutil.Process(pid)]
            return next((child.pid for child in children if child.status() == psutil.STATUS_ZOMBIE), 0)
        except psutil.NoSuchProcess as error:
            raise ChildProcessError(f"process {pid} has been waited for") from error
    which = (os.P_ALL, 0) if pid is None else (os.P_PID, pid)
    try:
        found = os.waitid(*which, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        if pid is not None:
            raise
        return 0
    return found.si_pid if found else 0


def end_with(parent: int, number: int = signal.SIGTERM) -> None:
    """Ask Linux for a signal to this process when the one that started it dies; ends at once if it is dead already.

    Args:
        parent: pid of the process that started this one.
        number: the signal.
    """
    if sys.platform != "linux":
        return
    _prctl(_SET_PARENT_DEATH_SIGNAL, number)
    if os.getppid() != parent:
        os._exit(1)  # it died before we asked


def adopt_orphans() -> None:
    """Become the parent of all processes that are started from here and lose theirs (Linux), so that none gets away."""
    if sys.platform == "linux":
        _prctl(_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def guard(channel_fd: int) -> NoReturn:
    """Keep a list of process groups; end them all when the notebook's side of the channel closes.

    A process of its own does this for spawned ranks (for forked ones, the zygote does): ranks notice that the notebook
    is gone by themselves too, but not while C code holds their interpreter.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=channel_fd))
    groups: set[int] = set()
    try:
        while True:
            message, _ = channel.receive()
            if message["do"] == "guard":
                groups.add(message["pid"])
            else:
                groups.discard(message["pid"])
    except (EOFError, OSError):
        for group in groups:
            kill_group(group)
    os._exit(0)
