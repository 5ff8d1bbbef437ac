"""A rank's connections to the other ranks, and how they are cut so that a collective that is stuck ends."""

from __future__ import annotations

import functools
import os
import socket
import stat
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

Address = tuple[str, int]
_held_by_python: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def watch_sockets() -> None:
    """From now on remember the sockets that Python code makes; those of gloo, NCCL and the stores are C++'s."""
    make = socket.socket.__init__

    @functools.wraps(make)
    def make_and_remember(self: socket.socket, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        _held_by_python.add(self)

    socket.socket.__init__ = make_and_remember  # type: ignore[method-assign]


def abort_communication(pids: Sequence[int]) -> None:
    """Make a main thread that is stuck in a collective return with an error; the process and its variables live on.

    Called from another thread. NCCL's communicators can be aborted. gloo's abort does nothing (torch 2.13), so its
    connections are shut down instead, which the stuck collective reports as an error. Connections to anybody else
    (a database, an experiment tracker) stay, and so do those that Python code holds.

    Args:
        pids: of all ranks of this world.
    """
    import torch
    import torch.distributed as dist

    if torch.cuda.is_initialized():
        for group in list(dist.distributed_c10d._world.pg_map):
            try:
                group.abort()
            except Exception:
                pass  # a group without NCCL, or already aborted
    store, held = os.environ.get("MASTER_PORT"), {one.fileno() for one in _held_by_python}
    among_ranks = set(_connections(pids))
    for fd, connection in _open_sockets():
        with connection:
            try:
                if connection.family not in (socket.AF_INET, socket.AF_INET6) or fd in held:
                    continue
                here, there = _plain(connection.getsockname()), _plain(connection.getpeername())
                if (there, here) in among_ranks or str(there[1]) == store:
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # a listening socket, or already closed


def _connections(pids: Sequence[int]) -> Iterator[tuple[Address, Address]]:
    """(local, remote) of every connection that these processes have."""
    import psutil  # (here, for few ranks ever need it)

    for pid in pids:
        try:
            found = psutil.Process(pid).net_connections("tcp")
        except psutil.Error:
            continue
        yield from ((_plain(one.laddr), _plain(one.raddr)) for one in found if one.raddr)


def _plain(address: Any) -> Address:
    """Without what IPv6 adds."""
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def _open_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Each socket that this process has: its file descriptor, and a second handle, which whoever asks closes."""
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                yield int(name), socket.socket(fileno=os.dup(int(name)))
        except OSError:
            pass  # it was closed meanwhile (one is the listing's own)
