"""The process that imports torch once and forks ranks.

Importing torch takes most of a cold start. This process pays for it once, while the reader still reads, and then
forks a rank in milliseconds. Forking is only safe from a process with one thread that has not touched CUDA, so
nothing else happens here: no parallel operator, no CUDA call.

It is also the guardian: it reaps ranks and tells the notebook how each ended, ends whatever a rank left behind, and
ends every rank when the notebook is gone, even if that was killed with SIGKILL.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from typing import NoReturn

from utils.ranks import newer
from utils.ranks.lifetimes import adopt_orphans, end_with, ended_child, kill_group, send_signal
from utils.ranks.wire import Channel, wait_for


def main(channel_fd: int) -> NoReturn:
    """Serve fork requests from the notebook until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()  # what a dead rank leaves behind becomes our child, so we can end it
    channel = Channel(socket.socket(fileno=channel_fd))
    # Collecting while torch is imported finds nothing and takes a fifth of the time. Frozen objects are never looked
    # at again: the collector would touch, and so copy, every page that ranks share with us.
    gc.disable()
    _import_torch()
    import utils.ranks.rank  # noqa: F401  (as every rank would)

    gc.freeze()
    gc.enable()
    channel.send({"event": "ready", "pid": os.getpid(), "threads": _thread_count()})

    ranks: set[int] = set()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        while True:
            readable = wait_for([channel, wake_read])
            if wake_read in readable:
                os.read(wake_read, 512)
                _reap(ranks, channel)
            if channel in readable:
                request, fds = channel.receive_with_fds()
                if request["do"] == "preload":
                    _preload(request["modules"])
                    continue
                if reason := _why_not_fork():
                    channel.send({"event": "refused", "ticket": request["ticket"], "reason": reason})
                    for fd in fds:
                        os.close(fd)
                    continue
                try:
                    pid = os.fork()
                except OSError as error:  # too many processes, say: this rank cannot be, and the others live on
                    channel.send({"event": "failed", "ticket": request["ticket"], "errno": error.errno})
                    for fd in fds:
                        os.close(fd)
                    continue
                if pid == 0:
                    _become_rank(channel, fds, (wake_read, wake_write))
                ranks.add(pid)
                for fd in fds:
                    os.close(fd)
                channel.send({"event": "forked", "ticket": request["ticket"], "pid": pid})
    except (EOFError, OSError):
        for pid in ranks:
            kill_group(pid)
        end = time.monotonic() + 5
        while _children() and time.monotonic() < end:  # what a rank leaves behind becomes our child as the rank ends
            _kill_adopted(set())
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            time.sleep(0.002)
        os._exit(0)


def _import_torch() -> None:
    """Import torch in a way that keeps forking safe."""
    # NVML instead of the CUDA runtime for is_available(); one BLAS thread, since threads do not survive a fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import torch
    import torch.distributed  # noqa: F401

    newer.add_names()  # (so that no rank of an older torch has to)


def _preload(modules: list[str]) -> None:
    """Import what later ranks need, such as what the first optimizer imports (torch 2.13: 800 modules, a second).

    Not done from the start, because ranks that need no optimizer should not wait for it, nor hold its 70 MB.
    """
    gc.disable()
    for module in modules:
        with contextlib.suppress(Exception):  # the rank that needs it will say why
            importlib.import_module(module)
    gc.freeze()
    gc.enable()


def _become_rank(channel: Channel, fds: list[int], not_mine: tuple[int, ...]) -> NoReturn:
    try:
        parent = os.getppid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        channel.close()
        for fd in not_mine:
            os.close(fd)
        os.setpgid(0, 0)  # a group of its own: its data-loader workers end with it
        end_with(parent, signal.SIGKILL)
        adopt_orphans()  # what this rank leaves behind is its own until it ends, so others' ends do not concern it
        from utils.ranks.rank import main as rank_main

        rank_main(fds)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _reap(ranks: set[int], channel: Channel) -> None:
    """Tell the notebook which ranks have ended, and end what they left behind."""
    while pid := ended_child():
        if pid in ranks:
            kill_group(pid)  # (while its number is not free yet for somebody else)
        _, status = os.waitpid(pid, 0)
        if pid in ranks:
            ranks.discard(pid)
            channel.send({"event": "exit", "pid": pid, "code": os.waitstatus_to_exitcode(status)})
        _kill_adopted(ranks)


def _kill_adopted(ranks: set[int]) -> None:
    """End grandchildren that came to us because their rank died (they may have left its process group)."""
    for pid in _children() - ranks:
        send_signal(pid, signal.SIGKILL)


def _children() -> set[int]:
    """Our children; empty where the system does not say."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            return {int(pid) for pid in children.read().split()}
    except OSError:
        return set()


def _why_not_fork() -> str:
    """Why a fork would not be safe any more; "" if it is."""
    threads = _thread_count()
    if threads > 1:
        return f"the process that would fork them has {threads} threads, of which a fork copies one"
    if sys.modules["torch"].cuda.is_initialized():
        return "the process that would fork them has touched CUDA, which no fork may inherit"
    return ""


def _thread_count() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1
