"""``python`` without the wait for an import: programs run in copies of a process that has imported what they need.

Importing torch or TensorFlow takes seconds, most of what a short training needs, and every process pays for it. Here
one process imports it and uses nothing of it. ``python([…])`` makes a command for which that process makes a copy of
itself, which runs a program as the real ``python PROGRAM …`` would, with the files, arguments and environment that a
launcher has given to the command. Nothing has been computed before the copy is made, so no thread is missing.

The command runs ``stand_in``: to the launcher it is an ordinary process, with the program's exit code. If it is
killed, the program is killed; SIGTERM and SIGINT are passed on.
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
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, NoReturn

from lessons.launchers import namespaces, processes

_PROGRAM = "import sys; from lessons.launchers.warm_process import serve; serve(*sys.argv[1:])"
MARK = "COURSE_FRAMEWORKS"  # this environment variable holds the pid of whoever started it all, and a random part
_STAND_IN = Path(__file__).with_name("stand_in.py")
#: No thread would survive the copy.
_ONE_THREAD = {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_ABOVE = 256  # received files wait above the numbers that they are to have

TORCH = ("torch", "torch._dynamo", "torch.distributed", "utils.training.same_training")  # (optimizers take _dynamo)
_MODULES = {"torch": TORCH, "tensorflow": ("tensorflow",)}


class Warm(NamedTuple):
    """A ``python`` that has imported something, and what leads a command to the network where it runs its programs."""

    python: Path
    inside: Callable[[Sequence[str]], list[str]]


_shared: dict[str, Warm] = {}


@contextlib.contextmanager
def warm(*names: str) -> Iterator[None]:
    """torch and TensorFlow (or one of them) are imported once for all runs in this block."""
    with contextlib.ExitStack() as stack:
        for name in names or _MODULES:
            _shared[name] = stack.enter_context(one(name))
            stack.callback(_shared.pop, name)
        yield


@contextlib.contextmanager
def one(name: str) -> Iterator[Warm]:
    """The one with "torch", or "tensorflow", that ``warm()`` has started; else one for this block alone."""
    if name in _shared:
        yield _shared[name]
        return
    with (
        namespaces.private_network() as inside,
        tempfile.TemporaryDirectory(prefix="warm-") as folder,
        python(_MODULES[name], environment(folder), inside([])) as command,
    ):
        yield Warm(command, inside)


def environment(folder: str | Path) -> dict[str, str]:
    """An environment in which TensorFlow is quiet, uses the CPU, and takes few threads.

    Args:
        folder: where Keras keeps its settings.
    """
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1", "KERAS_HOME": str(folder)}
    cpu = {"CUDA_VISIBLE_DEVICES": "", "TF_ENABLE_ONEDNN_OPTS": "0"}
    few = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    here = {name: value for name, value in processes.clean_environment().items() if name != "TF_CONFIG"}
    return here | quiet | cpu | few | {"no_proxy": "127.0.0.1"}


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
        client = " ".join(quote(str(word)) for word in (sys.executable, "-IS", _STAND_IN, address))
        command.write_text(f'#!/bin/sh\nexec {client} "$@"\n', encoding="utf-8")
        command.chmod(0o755)
        server = [*prefix, sys.executable, "-c", _PROGRAM, str(listener.fileno()), *modules]
        quiet = {"stdout": None, "pass_fds": [listener.fileno()]}
        with processes.helper(server, dict(env) | _ONE_THREAD, **quiet):
            yield command


def serve(listener: str, *modules: str) -> None:
    """What the process does: import, then a copy for each one that asks, until its standard input is closed."""
    gc.disable()  # (while importing it finds nothing)
    for module in (*modules, "utils.ranks.rank"):
        with contextlib.suppress(ImportError):  # the program that needs it will say why
            importlib.import_module(module)
    gc.freeze()  # so that no process looks through all that was imported, and thereby copies it
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how the copies have ended
    with socket.socket(fileno=int(listener)) as asked:
        while sys.stdin not in select.select([sys.stdin, asked], [], [])[0]:
            client, _ = asked.accept()
            with client:
                if os.fork() == 0:
                    asked.close()
                    _attend(client)
    with contextlib.suppress(ChildProcessError):
        os.wait()  # until there is none


def _attend(client: socket.socket) -> NoReturn:
    """Read what a client asks for, run it in one more copy, and tell how it has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(ValueError, OSError):  # (the client was killed)
        text, files, *_ = socket.recv_fds(client, 1, 64)
        while not text.endswith(b"\n"):
            if not (part := client.recv(1 << 16)):
                raise ValueError("half a request")
            text += part
        if (pid := os.fork()) == 0:
            client.close()
            _become(json.loads(text), files)
        for file in files:
            os.close(file)
        with contextlib.suppress(OSError):  # (the copy does it too: whoever is first)
            os.setpgid(pid, pid)
        threading.Thread(target=_pass_on, args=(client, pid), daemon=True).start()
        client.sendall(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    os._exit(0)


def _pass_on(client: socket.socket, pid: int) -> None:
    """Signals for the program and what it has started: those that the client sends; SIGKILL when it, or all, ends."""
    number = True
    while number:
        ready = select.select([sys.stdin, client], [], [])[0]
        number = b"" if sys.stdin in ready else client.recv(1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number[0] if number else signal.SIGKILL)


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
