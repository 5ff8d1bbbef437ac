"""Executing notebooks in place, stored the same way on every machine: ``python -m course execute FILE…``.

What is stored is what nbval sees when it runs the notebook again, because the tests compare the two: like nbval, this
does not act on ``clear_output`` or on updates of a display (cells with the tag ``nbval-ignore-output`` are not
compared, and there it does). Figures in a widget are stored as plain outputs, so they are seen without a kernel too;
the widget itself, which would show as "model not found", is stored as a sentence.

Nothing of the machine is stored: no times, no widget state, no absolute paths in tracebacks.
"""

from __future__ import annotations

import os
import re
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from course.build import METADATA as METADATA
from course.outline import ROOT

CELL_TIMEOUT = 120  # seconds
MAY_RAISE = "raises-exception"
NOT_COMPARED = {"nbval-ignore-output", "nbval-skip"}
INTERACTIVE = "interactive"  # a cell with sliders: it clears its figure, never the sliders, before it draws anew
WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_TEXT = "(an interactive figure: run this cell to use it)"
# What a front end notes about a cell for itself.
_PASSING = ("execution", "ExecuteTime", "collapsed", "scrolled", "trusted", "jupyter")
_ABSOLUTE = r"(?:[A-Za-z]:)?[/\\][^\s\x1b\"'()]*"  # the beginning of an absolute path
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ExecutionFailed(Exception):
    """Why a notebook was not stored, in words for its author."""


class _Client(NotebookClient):
    """Collects outputs as nbval does."""

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        kind = msg["msg_type"]
        if kind.startswith("comm"):
            return None
        tags = set(_tags(cell))
        if kind in ("clear_output", "update_display_data") and (INTERACTIVE in tags or not NOT_COMPARED & tags):
            return None
        return super().process_message(msg, cell, cell_index)


def execute(path: Path, cell_timeout: int = CELL_TIMEOUT) -> None:
    """Run a notebook in its own folder, from top to bottom, and store it.

    Args:
        path: the notebook; it is left as it is if a cell fails.
        cell_timeout: seconds that one cell may take.

    Raises:
        ExecutionFailed: a cell failed that was not meant to, or one that was meant to fail did not.
    """
    notebook = nbformat.read(path, as_version=4)
    _, notebook = nbformat.validator.normalize(notebook)  # cells get ids where they have none
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    client = _Client(
        notebook,
        timeout=cell_timeout,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(path.resolve().parent)}},
        extra_arguments=["--log-level=ERROR"],
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "RANKS_LIVE": "0",
            "COURSE_PROGRESS": str(Path(folder, "progress.json")),  # the author's own progress shows in no notebook
        }
        try:
            client.execute(env=environment)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise ExecutionFailed(_sentence(path, notebook, error, cell_timeout)) from None
    for number, cell in enumerate(notebook.cells, start=1):
        if MAY_RAISE in _tags(cell) and not any(output.output_type == "error" for output in cell.outputs):
            raise ExecutionFailed(f"{path}: cell {number} has the tag {MAY_RAISE} and raised nothing:\n{_head(cell)}")
    path.write_text(as_text(notebook), encoding="utf-8", newline="\n")


def as_text(notebook: Any) -> str:
    """The file's content for an executed notebook: normalised, so that only real changes show in a diff."""
    normalise(notebook)
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"  # indented by 1, keys sorted


def normalise(notebook: Any) -> None:
    """Take out of the notebook what depends on the machine or the hour."""
    described = {key: notebook.metadata[key] for key in ("course",) if key in notebook.metadata}
    notebook.metadata = nbformat.from_dict(METADATA | described)
    notebook.nbformat_minor = 5
    count = 0
    for cell in notebook.cells:
        for key in _PASSING:
            cell.metadata.pop(key, None)
        if cell.cell_type != "code":
            continue
        count += bool(cell.source.strip())
        cell.execution_count = count if cell.source.strip() else None
        cell.outputs = [_normal_output(output, count) for output in _joined(cell.outputs)]


def without_paths(text: str) -> str:
    """A traceback's text without the paths of this machine; its colours stay.

    Files of the repository are named from its root on, those of packages from ``site-packages`` on.
    """
    text = re.sub(_ABSOLUTE + r"[/\\]site-packages[/\\]", "site-packages/", text)
    for folder, name in (
        (str(ROOT) + os.sep, ""),
        (str(ROOT), "."),
        (sysconfig.get_paths()["stdlib"], "python"),
        (str(Path.home()) + os.sep, "~/"),
    ):
        if len(folder) > 2:  # a home of "/" would match everywhere
            text = text.replace(folder, name)
    return _without_cell_files(text)


def _without_cell_files(text: str) -> str:
    """ipykernel gives each cell a file name with its process number: /tmp/ipykernel_123/456.py."""
    return re.sub(_ABSOLUTE + r"ipykernel_\d+[/\\]\d+\.py", "<cell>", text)


def _joined(outputs: Sequence[Any]) -> list[Any]:
    """Consecutive outputs to the same stream as one: how they were cut is chance."""
    joined: list[Any] = []
    for output in outputs:
        if joined and output.output_type == "stream" and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _normal_output(output: Any, count: int) -> Any:
    if output.output_type == "error":
        output.traceback = [without_paths(line) for line in output.traceback]
    elif output.output_type == "stream":
        output.text = _without_cell_files(output.text)
    elif WIDGET in output.data:
        del output.data[WIDGET]
        output.data["text/plain"] = WIDGET_TEXT
    if output.output_type == "execute_result":
        output.execution_count = count
    return output


def _sentence(path: Path, notebook: Any, error: Exception, cell_timeout: int) -> str:
    if isinstance(error, CellTimeoutError):
        return f"{path}: a cell did not end within {cell_timeout} s. {_last_line(str(error))}"
    for number, cell in enumerate(notebook.cells, start=1):
        failures = [output for output in cell.get("outputs", []) if output.output_type == "error"]
        if failures and MAY_RAISE not in _tags(cell):
            trace = _COLOUR.sub("", "\n".join(failures[0].traceback))
            return (
                f"{path}: cell {number} failed with {failures[0].ename}: {failures[0].evalue}\n"
                f"{_head(cell)}\n\n{trace}\n\n"
                f"The notebook is as it was. (Is the error meant? Give the cell the tag {MAY_RAISE}.)"
            )
        if refused := next(filter(None, map(_usage_error, cell.get("outputs", []))), ""):
            return f"{path}: cell {number} failed with {refused}\n{_head(cell)}\n\nThe notebook is as it was."
    return f"{path}: the kernel died or could not run the notebook: {_last_line(str(error))}"


def _usage_error(output: Any) -> str:
    """What a magic says to options that it does not know: IPython prints that, and shows no error."""
    said = _COLOUR.sub("", output.get("text", "")) if output.output_type == "stream" else ""
    return next((line for line in said.splitlines() if line.startswith("UsageError: ")), "")


def _head(cell: Any) -> str:
    lines = cell.source.splitlines()
    return "\n".join("    " + line for line in lines[:5]) + ("\n    …" if len(lines) > 5 else "")


def _last_line(text: str) -> str:
    return next((line for line in reversed(_COLOUR.sub("", text).splitlines()) if line.strip()), "")


def _tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))
