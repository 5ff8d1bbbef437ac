"""Stands where ``python`` would: asks for a copy of the warm process, passes signals on to it, and ends as it ends.

    python -I -S stub.py SOCKET REAL_PYTHON SCRIPT ARGUMENTS…

It imports next to nothing, so that it starts in a few milliseconds. If there is no copy to be had, it becomes the real
Python.
"""

import json
import os
import resource
import signal
import socket
import sys

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_NAMESPACES = ("user", "net", "uts", "ipc", "mnt")
_MOST_FDS = 200
_READ_AT_IMPORT = ("TORCH_CPP_LOG_LEVEL", "LD_PRELOAD")  # too late for a copy


def main(path: str, real: str, command: list[str]) -> None:
    kept = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd)]
    plain = [part for part in command if part != "-u"] if command[:1] == ["-u"] else command
    suits = bool(plain) and (plain[0] == "-m" or not plain[0].startswith("-")) and len(kept) < _MOST_FDS
    suits = suits and not any(name in os.environ for name in _READ_AT_IMPORT)
    code = _copy(path, plain, kept, "-u" in command[:1]) if suits else None
    if code is None:
        os.execv(real, [real, *command])
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pause()
    os._exit(code)


def _copy(path: str, command: list[str], kept: list[int], unbuffered: bool) -> "int | None":
    """The exit code of a copy that has run the command; None: there was none."""
    namespaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
    mask = os.umask(0o077)
    os.umask(mask)
    request = {
        "command": command,
        "env": dict(os.environ),
        "folder": os.getcwd(),
        "umask": mask,
        "fds": kept,
        "unbuffered": unbuffered or bool(os.environ.get("PYTHONUNBUFFERED")),
        "namespaces": len(namespaces),
    }
    line = json.dumps(request).encode() + b"\n"
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        for number in _PASSED_ON:
            signal.signal(
                number, lambda number, frame: connection.send(json.dumps({"signal": number}).encode() + b"\n")
            )
        socket.send_fds(connection, [b"\n"], kept + namespaces)
        connection.sendall(line)
        answer = connection.makefile().readline()
    except OSError:
        return None
    found = json.loads(answer) if answer else {"code": -signal.SIGKILL}
    if "code" not in found:  # refused
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        return None
    return found["code"]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


main(sys.argv[1], sys.argv[2], sys.argv[3:])
