"""What one rank does: it becomes a worker of torchrun, runs the program, and writes down how that ended.

``diagnose`` starts it with a ``python`` that has imported torch (``warm_process``): ``python rank_run.py JSON``.
"""

from __future__ import annotations

import json
import linecache
import os
import pickle
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from lessons.launchers.failures import diagnose, isolation
from utils.ranks import groups


def main(
    program: str,
    args: Sequence[str],
    shape: Sequence[int],
    env: Mapping[str, str],
    files: Mapping[str, str],
    memory: int | None,
    history: bool,
    end: str,
) -> None:
    """``python program args``, as the worker of torchrun with this shape: rank, world size, nodes, port of the store.

    Args:
        env, files, memory, history: see ``diagnose.Case``; ``memory`` is this rank's, in bytes.
        end: the file in which it says how the program has ended, as far as its exit code does not.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so it is stopped when the time is over
    groups.set_environment(*shape)
    os.environ.update({"TORCHELASTIC_USE_AGENT_STORE": "True"} | env)
    dist.set_debug_level_from_env()
    for path, text in files.items():
        isolation.replace_file(path, text)
    if memory:
        isolation.limit_memory(memory)
    sys.argv, sys.path[0] = [program, *args], str(Path(program).parent)
    note: dict[str, Any] = {}
    code: Any = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as left:
        code = left.code
        if isinstance(code, str):
            note, code = _note(program, left), 1
    except BaseException as error:
        note, code = {"how": type(error).__name__} | _note(program, error), 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is over: nothing may cut short how it ended
    if history:
        note["collectives"] = _collectives(program)
    Path(f"{end}.draft").write_text(json.dumps(note))
    Path(f"{end}.draft").replace(end)
    if code:
        time.sleep(diagnose.ENDING)  # before its connections are closed, as Python needs a moment to end a process
    sys.exit(code)


def _note(program: str, error: BaseException) -> dict[str, Any]:
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == program]
    line = lines[-1] if lines else None
    return {"line": line, "code": linecache.getline(program, line).strip() if line else "", "words": str(error)}


def _collectives(program: str) -> list[tuple[str, int]]:
    """What the flight recorder holds of the program's own collectives."""
    from torch._C._distributed_c10d import _dump_fr_trace

    found = []
    for entry in pickle.loads(_dump_fr_trace())["entries"]:
        lines = [frame["line"] for frame in entry["frames"] if frame["filename"] == program]
        if lines:
            found.append((entry["profiling_name"].removeprefix("gloo:"), lines[0]))
    return found


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
