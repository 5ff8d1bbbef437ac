"""What stands for a program of a warm process (``warm_process``) at its launcher: ``python -IS stand_in.py SOCKET …``.

It finds nothing but Python's own modules, and so it is there soon.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

_FORWARDED = signal.SIGTERM, signal.SIGINT


def main(address: str, command: list[str]) -> None:
    """Hand over everything that a launcher has given to this process: arguments, environment, folder, open files."""
    command = [word for word in command if word != "-u"]  # (torchrun's; whoever is warm has no buffer for output)
    if command[0].startswith("-"):  # -c, -m, …: nothing for a warm process
        os.execv(sys.executable, [sys.executable, *command])
    files = []
    for number in range(64):
        with contextlib.suppress(OSError):
            os.fstat(number)
            files.append(number)
    request = {"command": command, "env": dict(os.environ), "folder": os.getcwd(), "files": files}
    warm = socket.socket(socket.AF_UNIX)
    warm.connect(address)
    socket.send_fds(warm, [b" "], files)
    warm.sendall(json.dumps(request).encode() + b"\n")
    for number in _FORWARDED:
        signal.signal(number, lambda number, _: warm.sendall(bytes([number])))
    code = int(warm.recv(64) or -signal.SIGKILL)
    if code < 0:
        for number in _FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
