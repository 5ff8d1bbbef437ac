"""Inside a sandbox: first a learner's notebook is run, then, when all of it has ended, the checks judge its functions.

In the kernel the checks judge nothing: they write the learner's functions, sealed, to a folder (see
``checks.engine.exercises``). What the course's own cells have handed in is said line by line:

    {"exercise": "average", "file": "0000.json"}              handed in
    {"exercise": "average", "failed": "NameError: …"}         its cell could not run
    {"note": "cell 5 was interrupted after 60 s."}            for people

The judge starts rank processes for these functions. A verdict leaves through a file that they do not have, with a
secret that they do not know. What they can do is end the judge: then the grader starts another for the next exercise.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import queue
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

import psutil

from checks.grade.walls import hide_memory, limit
from lessons.launchers.processes import kill_all
from utils.ranks.lifetimes import adopt_orphans

START_SECONDS = 60
_PATIENCE = 5  # seconds for a kernel to come back from an interrupt


def main() -> None:
    """``python -m checks.grade.inside notebook|judge BYTES PROCESSES``, and a request as JSON on standard input."""
    limit(int(sys.argv[2]), int(sys.argv[3]))
    hide_memory()
    request = json.load(sys.stdin)
    # No process that is started from here can write to what the grader reads.
    said = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    adopt_orphans()  # so that whoever hides from its parent is still found
    try:
        if request.get("hello"):
            say(said, hello=True)
        else:
            (run if sys.argv[1] == "notebook" else judge)(said, **request)
    finally:
        kill_all(lambda: psutil.Process().children(recursive=True))


def say(to: TextIO, **what: Any) -> None:
    print(json.dumps(what), file=to, flush=True)


def judge(said: TextIO, checks: str, answers: str, handed_in: list[list[str]], secret: str) -> None:
    """A verdict on each exercise, of which a file holds the answers."""
    from checks.engine.answers import Answer
    from checks.engine.exercises import exercises_in
    from checks.engine.verdicts import WRONG, Verdict

    exercises = {exercise.name: exercise for exercise in exercises_in(importlib.import_module(checks))}
    for name, file in handed_in:
        exercise = exercises[name]
        try:
            record = json.loads(Path(answers, file).read_text(encoding="utf-8"))
            sealed = zip(exercise.parameters, record.get("answers", ()), strict="refused" not in record)
            functions = [Answer.from_json(*pair) for pair in sealed]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            record = {"refused": "what was handed in cannot be read: the notebook has changed the file."}
        refused = record.get("refused")
        verdict = Verdict(WRONG, str(refused)) if refused else exercise.verdict(*functions)
        say(said, **dataclasses.asdict(verdict), exercise=name, secret=secret)


def run(said: TextIO, answers: str, cells: list[dict[str, Any]], cell_seconds: float) -> None:
    """Run all cells, whatever they do, and say what the checks have handed in."""
    folder, seen, before = Path(answers), set[Path](), ""
    folder.mkdir()
    os.environ["COURSE_ANSWERS"] = answers
    try:
        kernel = Kernel()
    except KernelDied as death:
        return say(said, note=f"the notebook was not run, for its kernel {death}.")
    for cell in cells:
        where = f"cell {cell['number']}"
        try:
            reply, interrupted = kernel.run(cell["source"], cell_seconds)
        except KernelDied as death:
            return say(said, note=f"{where} {death}; what follows it was not run.")
        if interrupted:
            say(said, note=f"{where} was interrupted after {cell_seconds:.0f} s.")
        handed_in = dict.fromkeys(cell["calls"], "")
        for path in sorted(set(folder.glob("*.json")) - seen):
            seen.add(path)
            if (name := _exercise_of(path)) in handed_in:
                handed_in[name] = path.name
        error = f"{reply.get('ename', 'nothing was handed in')}: {reply.get('evalue', '')}"
        if not handed_in and reply["status"] == "error":
            before = f"; before, {where} had failed: {error[:150]}"
        for name, file in handed_in.items():
            say(said, exercise=name, **({"file": file} if file else {"failed": error[:150] + before}))


def _exercise_of(path: Path) -> str:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["exercise"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def manager() -> tuple[Any, tempfile.TemporaryDirectory[str]]:
    """Of a kernel that is not started yet, and the folder of its sockets, which goes when nobody holds it any more.

    It has no ports: another kernel may take one that is free before this kernel binds it.
    """
    from jupyter_client.manager import KernelManager

    folder = tempfile.TemporaryDirectory(prefix="kernel-")
    file = os.path.join(folder.name, "kernel.json")
    return KernelManager(kernel_name="python3", transport="ipc", connection_file=file), folder


class KernelDied(Exception):
    """It ended, or it no longer listens; the text says which."""


class Kernel:
    """A kernel of which only the replies count: what it prints is never read."""

    def __init__(self) -> None:
        self._manager, self._folder = manager()
        with open(os.devnull, "w") as nowhere:
            self._manager.start_kernel(stdout=nowhere, stderr=nowhere)
        self._client = self._manager.blocking_client()
        self._client.start_channels(iopub=False, stdin=False, hb=False)
        if self._reply(self._client.kernel_info(), START_SECONDS) is None:
            raise KernelDied(f"did not start within {START_SECONDS} s")

    def run(self, source: str, seconds: float) -> tuple[dict[str, Any], bool]:
        """Run a cell: the reply, and whether it had to be interrupted."""
        message = self._client.execute(source, store_history=False, allow_stdin=False, stop_on_error=False)
        if (reply := self._reply(message, seconds)) is not None:
            return reply, False
        self._manager.interrupt_kernel()
        if (reply := self._reply(message, _PATIENCE)) is None:
            raise KernelDied(f"was stopped after {seconds:.0f} s, for it cannot be interrupted")
        return reply, True

    def _reply(self, message: str, seconds: float) -> dict[str, Any] | None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                reply = self._client.get_shell_msg(timeout=0.2)
            except queue.Empty:
                if not self._manager.is_alive():
                    raise KernelDied("ended its kernel") from None
                continue
            if reply["parent_header"].get("msg_id") == message:
                return reply["content"]
        return None


if __name__ == "__main__":
    main()
