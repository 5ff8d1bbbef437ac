"""Running a learner's notebook for the grader, and collecting the answers that its checks hand in.

In the kernel the checks judge nothing: they write the learner's functions, sealed, to a folder (see
``utils.checks.framework``). Only what the course's own cells hand in counts. The grader judges it in its own
process, which a learner's code never enters.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.checks.grading.handed_in import HandedIn, OfficialLab, with_official_checks
from utils.course.build import LabError, read_notebook

_silent = logging.getLogger("utils.checks.grading.silent")  # nbclient's own words; the table says it in ours
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


@dataclass
class Run:
    """What came of one notebook.

    Args:
        answers: what its checks handed in, by exercise.
        note: what went wrong with the notebook as a whole, in one sentence, or "".
    """

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    note: str = ""


async def execute(handed_in: HandedIn, lab: OfficialLab, cell_timeout: float, limit: float) -> Run:
    """Run one notebook from top to bottom in a kernel of its own, whatever its cells do.

    Args:
        handed_in: the learner's notebook. The file is not changed.
        lab: the official lab.
        cell_timeout: seconds a cell may take before it is interrupted.
        limit: seconds for the whole notebook.
    """
    run = Run()
    try:
        notebook = with_official_checks(read_notebook(handed_in.path), lab)
    except LabError as error:
        run.note = str(error)
        return run
    with tempfile.TemporaryDirectory(prefix="grade-") as folder:
        client = _client(notebook, lab, run, Path(folder), handed_in, cell_timeout)
        environment = {
            **os.environ,
            "COURSE_ANSWERS": str(Path(folder, "answers")),
            "COURSE_PROGRESS": str(Path(folder, "progress.json")),  # the learner's own stays as it is
        }
        Path(folder, "answers").mkdir()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started = time.monotonic()
        try:
            await asyncio.wait_for(client.async_execute(env=environment, **quiet), limit)
        except Exception as error:
            # nbclient turns the end of our patience into a DeadKernelError; the clock knows better.
            out_of_time = time.monotonic() - started >= limit
            run.note = f"the notebook was stopped after {limit:.0f} s." if out_of_time else _what_happened(error)
        finally:
            await _end_kernel(client)
    return run


def _client(notebook: Any, lab: OfficialLab, run: Run, folder: Path, handed_in: HandedIn, cell_timeout: float) -> Any:
    from nbclient import NotebookClient

    class Client(NotebookClient):
        def output(self, outs: Any, msg: Any, display_id: Any, cell_index: int) -> Any:
            # Nobody reads the rest, and a cell that prints for ever must not fill our memory.
            return super().output(outs, msg, display_id, cell_index) if msg["msg_type"] == "error" else None

    seen: set[Path] = set()

    def collect(cell: Any, cell_index: int, **_: Any) -> None:
        """After a cell: keep what it handed in if it is one of the course's cells, else forget it."""
        allowed = lab.called_in(cell.get("id", ""))
        for path in sorted(set((folder / "answers").glob("*.json")) - seen):
            seen.add(path)
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                if record["lab"] == lab.slug and record["exercise"] in allowed:
                    run.answers[record["exercise"]] = record
            except (OSError, ValueError, KeyError, TypeError):
                continue
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                if output.ename == "KeyboardInterrupt":
                    run.note = f"cell {cell_index + 1} was interrupted after {cell_timeout:.0f} s."
                for name in allowed - set(run.answers):
                    run.answers[name] = {"failed": f"{output.ename}: {output.evalue}"}

    return Client(
        notebook,
        log=_silent,
        timeout=cell_timeout,
        startup_timeout=60,
        interrupt_on_timeout=True,
        allow_errors=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(handed_in.path.parent)}},
        on_cell_executed=collect,
        store_widget_state=False,
    )


def _what_happened(error: Exception) -> str:
    from nbclient.exceptions import DeadKernelError

    if isinstance(error, DeadKernelError):
        return "the notebook killed its kernel."
    return f"the notebook could not be run ({type(error).__name__}: {' '.join(str(error).split())[:200]})."


async def _end_kernel(client: Any) -> None:
    """No kernel outlives its notebook, not even one that ignores interrupts."""
    try:
        if client.km is not None and await client.km.is_alive():
            await client.km.shutdown_kernel(now=True)
    except Exception:
        pass  # it is gone already
