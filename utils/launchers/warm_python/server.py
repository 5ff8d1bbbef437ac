"""The process that imports once and forks: ``python -m utils.launchers.warm_python.server LISTENING_FD MODULE…``."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from typing import Any

from utils.launchers.warm_python.copies import become
from utils.launchers.warm_python.wire import send
from utils.ranks.lifetimes import end_with, kill_group

_MOST_FDS = 255


class Copy:
    """A forked process, and the connection to the program that stands for it."""

    def __init__(self, pid: int, connection: socket.socket, env: dict[str, str]) -> None:
        self.pid, self.connection, self.env = pid, connection, env


class Server:
    """Forks when asked, passes signals on, tells how each copy ended; kills it when whoever asked has gone."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.copies: dict[int, Copy] = {}
        self.waiting: list[tuple[str, socket.socket]] = []  # for the end of all copies with a mark
        self.over = False
        self.preloaded: list[str] = []

    def serve(self) -> None:
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "over", True))
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(woken, selectors.EVENT_READ, lambda: os.read(woken, 512))
        while not self.over:
            for key, _ in self.selector.select():
                key.data()
            self._reap()
        for pid in self.copies:
            kill_group(pid)
        while self.copies:
            signal.pause()
            self._reap()

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        first, fds, _, _ = socket.recv_fds(connection, 1, _MOST_FDS)
        request = _line(connection, first)
        if "end" in request:
            mark = request["end"]
            for copy in self._marked(mark):
                kill_group(copy.pid)
            self.waiting.append((mark, connection))
        elif "command" in request:
            pid = os.fork()
            if pid == 0:
                self.selector.close()
                become(request, fds, connection, self.preloaded)
            with contextlib.suppress(OSError):  # (the copy does it too: whoever is first)
                os.setpgid(pid, pid)
            self.copies[pid] = Copy(pid, connection, request["env"])
            self.selector.register(connection, selectors.EVENT_READ, lambda: self._said(pid))
        for fd in fds:
            os.close(fd)

    def _said(self, pid: int) -> None:
        """Whoever stands for a copy has sent a signal, or has gone."""
        copy = self.copies[pid]
        message = _line(copy.connection)
        if "signal" in message:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, message["signal"])
        else:
            self.selector.unregister(copy.connection)
            kill_group(pid)

    def _reap(self) -> None:
        while self.copies:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            kill_group(pid)  # what it has left behind
            copy = self.copies.pop(pid)
            with contextlib.suppress(KeyError):
                self.selector.unregister(copy.connection)
            with contextlib.suppress(OSError):
                send(copy.connection, {"code": os.waitstatus_to_exitcode(status)})
            copy.connection.close()
        for mark, connection in list(self.waiting):
            if not self._marked(mark):
                with contextlib.suppress(OSError):
                    send(connection, {})
                connection.close()
                self.waiting.remove((mark, connection))

    def _marked(self, mark: str) -> list[Copy]:
        return [copy for copy in self.copies.values() if any(value.startswith(mark) for value in copy.env.values())]


def _line(connection: socket.socket, begin: bytes = b"\n") -> dict[str, Any]:
    """The next message; {}: the other side has gone."""
    line = begin.strip()
    while not line.endswith(b"\n"):
        try:
            part = connection.recv(65536)
        except ConnectionError:
            return {}
        if not part:
            return {}
        line += part
    found: dict[str, Any] = json.loads(line.splitlines()[-1])
    return found


def main(listening: int, modules: list[str]) -> None:
    """Serve until SIGTERM, or until whoever started it has gone."""
    end_with(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = Server(socket.socket(fileno=listening))
    gc.disable()  # as in utils.ranks.zygote: collecting finds nothing while modules are imported, and takes its time
    ours = set(sys.modules)
    for module in modules:
        importlib.import_module(module)
    server.preloaded = [name for name in sys.modules if name not in ours]
    gc.freeze()  # so that no copy looks through all that was imported, and thereby copies it
    gc.enable()
    if len(os.listdir("/proc/self/task")) > 1:
        print("warm_python: a module has started a thread, and a fork would lose it", file=sys.stderr)
    server.serve()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
