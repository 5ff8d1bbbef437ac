"""``python`` without the wait for an import: programs run in copies of a process that has imported what they need.

Importing torch or TensorFlow takes seconds, most of what a short training needs, and every process pays for it. Here
one process imports it and uses nothing of it. ``python([…])`` makes a command for which that process makes a copy of
itself, which runs a program as the real ``python PROGRAM …`` would, with the files, arguments and environment that a
launcher has given to the command. Nothing has been computed before the copy is made, so no thread is missing.

The command runs this file, too (``_stand_in``): to the launcher it is an ordinary process, with the program's exit
code. If it is killed, the program is killed; SIGTERM and SIGINT are passed on.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

_PROGRAM = (
    "import sys; from lessons.launchers.frameworks.warm_process import serve; serve(int(sys.argv[1]), sys.argv[2:])"
)
FORWARDED = signal.SIGTERM, signal.SIGINT
_LOOK = 0.01  # seconds between two looks at processes that may have ended
#: No thread would survive the copy.
_ONE_THREAD = {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_ABOVE = 256  # received files wait above the numbers that they are to have


@contextlib.contextmanager
def python(modules: Sequence[str], env: Mapping[str, str], prefix: Sequence[str] = ()) -> Iterator[Path]:
    """The path of a ``python`` that has imported these modules; at the end, whatever it still runs is killed.

    Args:
        modules: what is imported, in the background: the first program waits for it.
        env: the environment for that.
        prefix: the beginning of a command line that leads to where programs are to run (``Host.inside``).
    """
    with tempfile.TemporaryDirectory(prefix="warm-") as folder, socket.socket(socket.AF_UNIX) as listener:
        address, command = Path(folder, "socket"), Path(folder, "python")
        listener.bind(str(address))
        listener.listen(64)
        client = " ".join(quote(str(word)) for word in (sys.executable, "-IS", __file__, address))
        command.write_text(f'#!/bin/sh\nexec {client} "$@"\n', encoding="utf-8")
        command.chmod(0o755)
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", _PROGRAM, str(listener.fileno()), *modules],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env=dict(env) | _ONE_THREAD,
            start_new_session=True,
        )
        try:
            yield command
        finally:
            process.communicate()  # closes its standard input: it kills its children, and ends


def serve(listener: int, modules: Sequence[str]) -> None:
    """What the process does: import, then a copy for each one that asks, until its standard input is closed."""
    gc.disable()  # (while importing it finds nothing)
    for module in (*modules, "utils.ranks.rank"):
        with contextlib.suppress(ImportError):  # the program that needs it will say why
            importlib.import_module(module)
    gc.freeze()  # so that no process looks through all that was imported, and thereby copies it
    gc.enable()
    asked, running = socket.socket(fileno=listener), dict[int, socket.socket]()
    while True:
        ready, *_ = select.select([sys.stdin, asked, *running.values()], [], [], _LOOK if running else None)
        if sys.stdin in ready:
            break
        for pid, client in running.items():
            if client in ready:  # a signal to pass on, or its own end
                number = client.recv(1)
                _send(pid, number[0] if number else signal.SIGKILL)
        if asked in ready:
            client, _ = asked.accept()
            with contextlib.suppress(ValueError, OSError):  # (it was killed before it had asked)
                request, files = _receive(client)
                pid = os.fork()
                if pid == 0:
                    for other in (asked, client, *running.values()):
                        other.close()
                    _become(request, files)
                for file in files:
                    os.close(file)
                with contextlib.suppress(OSError):  # (the copy does it too: whoever is first)
                    os.setpgid(pid, pid)
                running[pid] = client
        _collect(running)
    for pid in running:
        _send(pid, signal.SIGKILL)
    while running:
        _collect(running)
        select.select([], [], [], _LOOK)


def _receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    text, files, *_ = socket.recv_fds(client, 1, 64)
    text = b""
    while not text.endswith(b"\n"):
        if not (part := client.recv(1 << 16)):
            raise ValueError("half a request")
        text += part
    return json.loads(text), list(files)


def _send(pid: int, number: int) -> None:
    """A signal for a program and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _collect(running: dict[int, socket.socket]) -> None:
    """Tell those that wait how their programs have ended."""
    for pid in list(running):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            with running.pop(pid) as client, contextlib.suppress(OSError):
                client.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    """What ``python PROGRAM …`` does, in this process, but for taking all modules apart at the end."""
    os.setpgid(0, 0)
    waiting = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(waiting, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    from utils.ranks.rank import draw_other_numbers

    draw_other_numbers()
    sys.argv = request["command"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    code = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:  # as multiprocessing ends what it has forked
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush(), sys.stderr.flush()
        if "mpi4py.MPI" in sys.modules:  # MPICH says good-bye to mpiexec where C programs end
            sys.modules["mpi4py.MPI"].Finalize()
            ctypes.CDLL(None).exit(code)
        os._exit(code)


# ---------------------------------------------------------------------- what stands for the program at its launcher
def _stand_in(address: str, command: list[str]) -> NoReturn:
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


if __name__ == "__main__":  # (as `python -IS FILE …`, which finds nothing but Python's own modules, and soon)
    _stand_in(sys.argv[1], sys.argv[2:])
