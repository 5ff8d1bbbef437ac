"""Learners' notebooks: where they are, and how they get the official checks back.

A learner may have edited, moved or deleted the cells that call checks. Before anything runs, these cells are
put back from the official lab: found by the id of the cell, at the end if the cell is gone. What a learner
writes stays.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from utils.course.build import CHECK_CALL, LabError, read_notebook
from utils.course.outline import FILE_NAME, slug_of


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
    def exercises(self) -> list[Any]:
        from utils.checks.framework import exercises_in

        return [exercise for exercise in exercises_in(self.checks) if exercise.lab == self.slug]

    def called_in(self, cell_id: str) -> set[str]:
        """The names of the checks that one of its cells calls."""
        return set(CHECK_CALL.findall(self.cells.get(cell_id, "")))


@dataclass(frozen=True)
class HandedIn:
    """One notebook of one learner."""

    learner: str
    slug: str
    path: Path


def official_lab(path: Path) -> OfficialLab | None:
    """Read an official lab; None if it has no checks.

    Raises:
        LabError: if it cannot be read, or its checks cannot be imported.
    """
    cells, import_line, module = {}, "", ""
    for cell in read_notebook(path)["cells"]:
        if cell["cell_type"] != "code":
            continue
        if CHECK_CALL.search(cell["source"]):
            cells[cell["id"]] = cell["source"]
        for line in cell["source"].splitlines():
            if found := _module_called_check(line):
                import_line, module = line.strip(), found
    if not cells:
        return None
    if not module:
        raise LabError(f"{path} calls checks, but no line imports a module as `check`.")
    try:
        return OfficialLab(slug_of(path.stem), importlib.import_module(module), import_line, cells)
    except ImportError as error:
        raise LabError(f"the checks of {path} cannot be imported: {error}.") from None


def find_handed_in(folder: Path, slugs: set[str]) -> list[HandedIn]:
    """The notebooks in ``folder`` (one learner) and in its folders (one learner each) that are labs of the
    course.

    Raises:
        LabError: if there is no such folder, or no lab in it.
    """
    if not folder.is_dir():
        raise LabError(f"there is no folder {folder}.")
    found = []
    for learner in [folder, *sorted(entry for entry in folder.iterdir() if entry.is_dir())]:
        for path in sorted(learner.glob("*.ipynb")):
            # By slug: the number may have been another one when the lab was handed out.
            if FILE_NAME.fullmatch(path.name) and slug_of(path.stem) in slugs:
                found.append(HandedIn(learner.resolve().name, slug_of(path.stem), path))
    if not found:
        known = ", ".join(f"NN_{slug}.ipynb" for slug in sorted(slugs)) or "none: there are no labs yet"
        raise LabError(f"{folder} holds no notebook of the course, nor do its folders (looked for {known}).")
    return found


def with_official_checks(notebook: Any, lab: OfficialLab) -> Any:
    """The learner's notebook with every cell that calls a check as the course wrote it.

    Args:
        notebook: the learner's, as nbformat reads it; it is changed.
        lab: the official lab.

    Returns:
        The notebook.
    """
    import nbformat

    missing = dict(lab.cells)
    cells = []
    for cell in notebook.cells:
        source = missing.pop(cell.get("id", ""), None)
        cells.append(cell if source is None else _official_cell(cell["id"], source, lab))
    cells += [_official_cell(cell_id, source, lab) for cell_id, source in missing.items()]
    notebook.cells = cells
    notebook.metadata = nbformat.from_dict({"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    return notebook


def _official_cell(cell_id: str, source: str, lab: OfficialLab) -> Any:
    import nbformat

    # The import again: the learner may have given the name ``check`` to something else.
    cell = nbformat.v4.new_code_cell(f"{lab.import_line}\n{source}")
    cell["id"] = cell_id
    return cell


def _module_called_check(line: str) -> str | None:
    try:
        statements = ast.parse(line.strip()).body
    except SyntaxError:
        return None
    return next(_imports(statements), None)


def _imports(statements: list[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            package = f"{statement.module}." if isinstance(statement, ast.ImportFrom) else ""
            for alias in statement.names:
                if (alias.asname or alias.name) == "check":
                    yield f"{package}{alias.name}"
