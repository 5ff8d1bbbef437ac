"""The official labs, and how a learner's notebook gets their checks back.

A learner may have edited, moved or deleted the cells that call checks. Before anything runs, these cells are
put back from the official lab: found by the id of the cell, at the end if the cell is gone. What a learner
writes stays.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from checks.engine.exercises import Exercise, exercises_in
from course.build import CHECK_CALL, LabError, read_notebook
from course.outline import slug_of

_IMPORTS_CHECK = re.compile(r"^(?:from (\S+) )?import (\S+) as check$", re.MULTILINE)


@dataclass(frozen=True)
class OfficialLab:
    """A lab as the course hands it out.

    Args:
        slug: "ddp_and_bucketing".
        checks: the module that its notebook calls ``check``.
        import_line: how it does so.
        cells: the source of every cell that calls a check, by cell id, in order.
    """

    slug: str
    checks: ModuleType
    import_line: str
    cells: dict[str, str]

    @property
    def exercises(self) -> list[Exercise]:
        return [exercise for exercise in exercises_in(self.checks) if exercise.lab == self.slug]

    def called_in(self, cell_id: str) -> list[str]:
        """The names of the checks that one of its cells calls."""
        return CHECK_CALL.findall(self.cells.get(cell_id, ""))

    def missing_in(self, notebook: Any) -> list[str]:
        """The ids of its cells that a notebook lacks."""
        there = {cell.get("id", "") for cell in notebook.cells}
        return [cell_id for cell_id in self.cells if cell_id not in there]

    def about(self, notebook: Any) -> str:
        """A sentence, if this notebook is not quite this lab; else ""."""
        if not (missing := self.missing_in(notebook)):
            return ""
        if len(missing) == len(self.cells):
            return "none of the lab's check cells is in this notebook: is it the lecture, or a notebook of your own?"
        lost = {name for cell_id in missing for name in self.called_in(cell_id)}
        titles = ", ".join(exercise.title for exercise in self.exercises if exercise.name in lost)
        return f"an old version of the lab, or check cells were deleted: these were put back at the end: {titles}."

    def cells_to_run(self, notebook: Any) -> list[dict[str, Any]]:
        """The learner's code cells, with every cell that calls a check as the course wrote it."""
        cells = [(number, cell) for number, cell in enumerate(notebook.cells, start=1) if cell.cell_type == "code"]
        run, once = [], set()
        for number, cell in cells:
            cell_id = cell.get("id", "")
            official = cell_id in self.cells and cell_id not in once
            once.add(cell_id)
            run.append(self._official_cell(number, cell_id) if official else _cell(number, cell.source))
        end = len(notebook.cells) + 1
        return run + [self._official_cell(end + index, lost) for index, lost in enumerate(self.missing_in(notebook))]

    def _official_cell(self, number: int, cell_id: str) -> dict[str, Any]:
        # The import again: the learner may have given the name ``check`` to something else.
        return _cell(number, f"{self.import_line}\n{self.cells[cell_id]}", self.called_in(cell_id))


def _cell(number: int, source: str, calls: list[str] | None = None) -> dict[str, Any]:
    return {"number": number, "source": source, "calls": calls or []}


def _official_lab(path: Path) -> OfficialLab | None:
    cells, import_line, module = {}, "", ""
    for cell in read_notebook(path)["cells"]:
        if cell["cell_type"] != "code":
            continue
        if CHECK_CALL.search(cell["source"]):
            cells[cell["id"]] = cell["source"]
        if found := _IMPORTS_CHECK.search(cell["source"]):
            import_line, module = found[0], ".".join(filter(None, found.groups()))
    if not cells:
        return None
    if not module:
        raise LabError(f"{path} calls checks, but no line imports a module as `check`.")
    try:
        return OfficialLab(slug_of(path.stem), importlib.import_module(module), import_line, cells)
    except ImportError as error:
        raise LabError(f"the checks of {path} cannot be imported: {error}.") from None


def official_labs(folder: Path) -> dict[str, OfficialLab]:
    """The labs in a folder that have checks, by slug.

    Raises:
        LabError: if one cannot be read, or its checks cannot be imported.
    """
    return {lab.slug: lab for path in sorted(folder.glob("*.ipynb")) if (lab := _official_lab(path)) is not None}
