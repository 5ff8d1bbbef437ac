"""A process that has imported TensorFlow, and from which the processes of a cluster are forked.

The import takes seconds, most of what a short training needs, and every process of a cluster pays for it. So one
process imports TensorFlow and uses nothing of it; each process of a cluster is a copy of it that runs a program as
``python PROGRAM`` would. Nothing has been computed before the copy is made, so no thread of TensorFlow's is missing.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from utils.launchers import namespaces

_PROGRAM = "import sys; from utils.launchers.frameworks import tf_warm; tf_warm.fork_when_asked(sys.argv[1:])"
_LOOK = 0.01  # seconds between two looks at processes that may have ended


class Process:
    """A process that was forked; like ``subprocess.Popen``, as far as it is needed."""

    def __init__(self, warm: Warm, pid: int, state: Path) -> None:
        self.pid, self._warm, self._state = pid, warm, state

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._state.exists():
            return int(self._state.read_text())
        if self._warm.ended():
            return self._warm.lost(self._state)
        return None

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(_LOOK)
        return code

    def kill(self) -> None:
        """SIGKILL for it and what it has started; it may have ended already."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class Warm:
    """The process from which others are forked; made by ``started``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._lock = process, threading.Lock()

    def fork(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> Process:
        """A new process that runs a program.

        Args:
            command: the program's path and arguments.
            env: all of its environment.
            log: where its output goes; beside it, a file for its exit code.
        """
        state = log.with_suffix(".code")
        request = {"command": list(command), "env": dict(env), "log": str(log), "state": str(state)}
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:  # (a lecture has a run in the background)
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that others are forked from has ended with {self._process.wait()}")
        return Process(self, int(answer), state)

    def ended(self) -> bool:
        return self._process.poll() is not None

    def lost(self, state: Path) -> int:
        """The exit code of a process whose parent has ended: what it has left, or that it was killed with it."""
        return int(state.read_text()) if state.exists() else -signal.SIGKILL


@contextlib.contextmanager
def started(env: Mapping[str, str], modules: Sequence[str]) -> Iterator[Warm]:
    """A process, in a network of its own where the system allows it; at the end it and all its children are killed.

    Args:
        env: all of its environment.
        modules: what it imports.
    """
    command = [sys.executable, "-c", _PROGRAM, *modules]
    with namespaces.private_network(command) as here:
        process = subprocess.Popen(
            here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env), text=True, start_new_session=True
        )
        try:
            yield Warm(process)
        finally:
            process.communicate()  # closes its standard input: it kills its children, and ends


def fork_when_asked(modules: Sequence[str]) -> None:
    """What the process does: import, then a new process for each line of its standard input, until that is closed."""
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # so that no process looks through all that was imported, and thereby copies it
    running: dict[int, Path] = {}
    while True:
        if select.select([sys.stdin], [], [], _LOOK)[0]:
            line = sys.stdin.readline()
            if not line:
                break
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _become(request)
            with contextlib.suppress(OSError):  # (the child does it too: whoever is first)
                os.setpgid(pid, pid)
            running[pid] = Path(request["state"])
            print(pid, flush=True)
        _collect(running)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    while running:
        _collect(running)
        time.sleep(_LOOK)


def _collect(running: dict[int, Path]) -> None:
    """Write down the exit codes of those that have ended."""
    for pid in list(running):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            state = running.pop(pid)
            half = state.with_suffix(".part")
            with contextlib.suppress(FileNotFoundError):  # nobody wants to know any more
                half.write_text(str(os.waitstatus_to_exitcode(status)))
                half.replace(state)


def _become(request: Mapping[str, Any]) -> NoReturn:
    """What ``python PROGRAM …`` does, in this process, but for taking TensorFlow's modules apart at the end."""
    os.setpgid(0, 0)
    for stream, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, stream)
        os.close(opened)
    os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(request["env"])
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
        traceback.print_exc()
    finally:  # as multiprocessing ends what it has forked
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
