"""What stands for ``python`` beside a warm process (``warm_process``): it lets that run the program, and waits.

Run as ``python -IS warm_python.py ADDRESS PROGRAM …``: the launcher sees an ordinary process, with the program's exit
code. If it is killed, the warm process kills the program; SIGTERM and SIGINT are passed on.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = signal.SIGTERM, signal.SIGINT


def main(address: str, command: list[str]) -> None:
    """Hand over everything that a launcher has given to this process: arguments, environment, folder, open files."""
    command = [word for word in command if word != "-u"]  # (torchrun's; whoever is warm has no buffer for output)
    if command[0].startswith("-"):  # -c, -m, …: nothing for a warm process
        os.execv(sys.executable, [sys.executable, *command])
    files = []
    for number in range(64):
        try:
            os.fstat(number)
        except OSError:
            continue
        files.append(number)
    request = {"command": command, "env": dict(os.environ), "folder": os.getcwd(), "files": files}
    warm = socket.socket(socket.AF_UNIX)
    warm.connect(address)
    socket.send_fds(warm, [b"\n"], files)
    warm.sendall(json.dumps(request).encode() + b"\n")
    for number in FORWARDED:
        signal.signal(number, lambda number, _: warm.sendall(bytes([number])))
    code = int(warm.recv(64) or -signal.SIGKILL)
    if code < 0:
        for number in FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main(sys.argv[1], sys.argv[2:])
