"""What a copy does: it takes over streams, environment, folder and network of another process, and runs a program."""

from __future__ import annotations

import atexit
import builtins
import ctypes
import fcntl
import os
import runpy
import signal
import socket
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from utils.launchers.warm_python.wire import send

_ABOVE = 1000  # no program of ours has so many open files
#: True in a copy, where the parent says nothing about who has started this.
is_copy = False


def become(request: dict[str, Any], fds: list[int], connection: socket.socket, preloaded: Sequence[str]) -> NoReturn:
    """Run ``request["command"]`` as ``python …`` would, in this process that has just been forked.

    Args:
        request, fds, connection: what ``stub.py`` has sent, and to where an answer goes.
        preloaded: names of the modules that were imported beforehand.
    """
    global is_copy
    is_copy = True
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    count = len(fds) - request["namespaces"]
    try:
        for fd in fds[count:]:
            _enter(fd)
    except OSError:
        send(connection, {"refused": True})
        os._exit(0)
    connection.detach()
    _take_over(fds[:count], request["fds"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=request["unbuffered"] or stream is sys.stderr)  # type: ignore[union-attr]
    _settle(request)
    code = run_as_main(request["command"])
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _spare(preloaded)
    sys.exit(code)  # and from here on Python ends as it always does


def run_as_main(command: list[str]) -> int:
    """What ``python PROGRAM …`` or ``python -m MODULE …`` does, up to its exit code."""
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            path = Path(command[0])
            sys.path.insert(0, str(path.resolve().parent))
            main = types.ModuleType("__main__")
            main.__dict__.update(__file__=str(path), __builtins__=builtins)
            sys.modules["__main__"] = main
            exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        error = error.with_traceback(_without_ours(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _spare(modules: Sequence[str]) -> None:
    """Python takes all modules apart at its end. For those of the warm process that would be half a second's work."""
    for name in modules:
        if module := sys.modules.pop(name, None):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    ours = (__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def _enter(namespace: int) -> None:
    """Join the host (network, host name, files) that this is a part of, unless it is ours already."""
    name = os.readlink(f"/proc/self/fd/{namespace}").partition(":")[0]
    if os.fstat(namespace).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), f"setns {name}")


def _take_over(fds: list[int], numbers: list[int]) -> None:
    """Open files get the numbers that they have in the other process; all other files are closed."""
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD, _ABOVE) for fd in fds]
    os.closerange(3, _ABOVE)
    for fd, number in zip(above, numbers, strict=True):
        os.dup2(fd, number, inheritable=True)
    os.closerange(_ABOVE, max(above, default=_ABOVE) + 1)


def _settle(request: dict[str, Any]) -> None:
    """Folder, permissions of new files, environment, and where modules are found."""
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    added = [entry for entry in request["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    here = [request["folder"]] if request["command"][0] == "-m" else []
    sys.path[:] = [*here, *added, *(entry for entry in sys.path[1:] if entry not in added)]
