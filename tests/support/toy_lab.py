"""The notebook of the lab that exists in tests only: its solution, and what learners make of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

SLUG = "98_toy"
SOLVED = {
    "add": "    return a + b",
    "mean": "    dist.all_reduce(tensor)\n    return tensor / world_size",
    "back": "    return numbers[::-1]",
}


def code(cell_id: str, source: str, *tags: str) -> Any:
    return new_code_cell(source, id=cell_id, metadata={"tags": list(tags)} if tags else {})


def solution() -> Any:
    """The solution as its author leaves it: executed, with traces of the editor in its metadata."""

    def hole(name: str) -> str:
        return f"    ### BEGIN SOLUTION\n{SOLVED[name]}\n    ### END SOLUTION"

    cells = [
        new_markdown_cell("# Toy lab", id="title"),
        code("start", "import toy_checks as check"),
        code("add", f'def add(a, b):\n    """The sum."""\n{hole("add")}'),
        code("check-add", "check.add(add)"),
        code("hint", "print('only for the instructor')", "solution-only"),
        code("mean", f"def mean_over_ranks(tensor):\n{hole('mean')}"),
        code("check-mean", "check.mean_over_ranks(mean_over_ranks)"),
        code("back", f"def pack(numbers):\n{hole('back')}\n\n\ndef unpack(numbers):\n{hole('back')}"),
        code("check-back", "check.there_and_back(pack, unpack)"),
    ]
    for number, cell in enumerate(cells):
        if cell.cell_type == "code":
            cell.execution_count = number
            cell.outputs = [new_output("execute_result", {"text/plain": "✓ right"}, execution_count=number)]
            cell.metadata["execution"] = {"iopub.execute_input": "2026-01-01"}
    return new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Mine"}, "author": "me"}
    )


def write(notebook: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def solved(lab: Path, **answers: str) -> Any:
    """A learner's copy of the lab with bodies for some of its functions: add, mean, back."""
    notebook = copy.deepcopy(nbformat.read(lab, as_version=4))
    invitation = '    raise NotImplementedError("Write your answer here")'
    for cell in notebook.cells:
        if cell.id in answers:
            assert invitation in cell.source
            cell.source = cell.source.replace(invitation, answers[cell.id])
    return notebook


def cell(notebook: Any, cell_id: str) -> Any:
    return next(cell for cell in notebook.cells if cell.id == cell_id)
