"""What one rank does: it becomes a worker of torchrun, runs the program, and writes its end down in files."""

from __future__ import annotations

import json
import linecache
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from utils.ranks.failures import how_it_ended

#: Seconds from an error to closed connections: Python needs a moment to end a process.
_ENDING = 0.3


@dataclass(frozen=True)
class RankRun:
    """What one rank does. It writes its end to files that begin with ``log``, because it may be killed."""

    program: str
    args: Sequence[str]
    shape: tuple[int, int, int]  # rank, world size, nodes
    env: Mapping[str, str]
    files: Mapping[str, str]
    memory: int | None
    history: bool
    log: str
    until: Sequence[str] = ()  # files that say that the ranks have ended that are waited for

    def __call__(self) -> None:
        import torch.distributed as dist

        from lessons.launchers.failures import isolation
        from utils.ranks import groups

        before, pipes = sys.stdout, [os.dup(1), os.dup(2)]  # kept open: the rank listens at their other ends
        for stream, name in ((1, "out"), (2, "err")):  # torch writes there, not to Python's streams
            os.dup2(os.open(f"{self.log}.{name}", os.O_WRONLY | os.O_CREAT, 0o600), stream)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (it stays)
        dist.destroy_process_group()  # the course's own; the program makes one
        groups.set_environment(*self.shape, port=0)
        os.environ.update(self.env)
        dist.set_debug_level_from_env()
        dist.init_process_group = _init_process_group
        leave, os._exit = os._exit, _exit_of(os.getpid(), os._exit)
        sys.argv = [self.program, *self.args]
        for path, text in self.files.items():
            isolation.replace_file(path, text)
        if self.memory:
            isolation.limit_memory(self.memory)
        over = threading.Event()
        if self.until:
            threading.Thread(target=self._stop, args=(over, leave), daemon=True).start()
        note: dict[str, Any] = {"how": "finished"}
        try:
            try:
                _run_as_main(self.program)
            finally:
                over.set()
                os._exit = leave
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is over: nothing may cut short how it ended
        except SystemExit as end:
            if end.code is not None and end.code != 0:
                words = {} if isinstance(end.code, int) else self._note(end)
                note = words | {"how": how_it_ended(end.code if isinstance(end.code, int) else 1)}
        except KeyboardInterrupt as stop:  # so a rank is stopped when the time is over
            note = self._note(stop) | {"how": "still running"}
        except BaseException as error:
            note = self._note(error)
            del error
        sys.stdout.flush()
        sys.stdout = before
        for stream, pipe in enumerate(pipes, start=1):
            os.dup2(pipe, stream)
        note["collectives"] = self._collectives() if self.history else []
        self._end(note)
        if "words" in note:
            time.sleep(_ENDING)
        with suppress(Exception):
            dist.destroy_process_group()  # a process that ends closes its connections

    def _end(self, note: Mapping[str, Any]) -> None:
        """Write the end down, in one step: others wait for the file."""
        draft = Path(f"{self.log}.draft")
        draft.write_text(json.dumps(note))
        draft.replace(f"{self.log}.end")

    def _stop(self, over: threading.Event, leave: Callable[[int], NoReturn]) -> None:
        """When the ranks have ended that are waited for, stop the program on this one, whatever it waits for."""
        while not all(map(os.path.exists, self.until)):
            time.sleep(0.02)
        time.sleep(_ENDING)  # the others notice
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)
        if not over.wait(_ENDING):  # it waits inside torch, where Python's signals do not arrive
            self._end({"how": "still running", "collectives": []})
            leave(0)

    def _note(self, error: BaseException) -> dict[str, Any]:
        frames = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_code.co_filename == self.program]
        line = lines[-1] if lines else None
        code = linecache.getline(self.program, line).strip() if line else ""
        return {"how": type(error).__name__, "line": line, "code": code, "words": str(error)}

    def _collectives(self) -> list[tuple[str, int]]:
        """What the flight recorder holds of the program's own collectives."""
        from torch._C._distributed_c10d import _dump_fr_trace

        found = []
        for entry in pickle.loads(_dump_fr_trace())["entries"]:
            lines = [frame["line"] for frame in entry["frames"] if frame["filename"] == self.program]
            if lines:
                found.append((entry["profiling_name"].removeprefix("gloo:"), lines[0]))
        return found


def _exit_of(pid: int, leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    """``os._exit`` for a program: it ends, the rank that runs it lives on, and processes that it has forked end too."""

    def end(code: int) -> NoReturn:
        if os.getpid() == pid and threading.current_thread() is threading.main_thread():
            sys.exit(code)
        leave(code)

    return end


def _run_as_main(program: str) -> None:
    """As ``python program`` would: the folder of the program comes first in sys.path."""
    import runpy

    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


def _init_process_group(backend: str | None = None, **options: Any) -> None:
    """torch's own, with a store found through MASTER_ADDR and MASTER_PORT (in a rank of the course it is another)."""
    import torch.distributed as dist
    from torch.distributed.constants import default_pg_timeout

    timeout = options.get("timeout") or default_pg_timeout
    if options.get("store") is None and options.get("init_method") in (None, "env://"):
        store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
        store.set_timeout(timeout)
        options |= {"store": dist.PrefixStore("default_pg", store), "rank": rank, "world_size": world_size}
        options.pop("init_method", None)
    dist.distributed_c10d.init_process_group(backend, **options)
