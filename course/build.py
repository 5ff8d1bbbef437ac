"""Labs from solutions, and the references of their checks: ``make labs``.

The solution is the only source. Its cells keep their order and their ids (the grader finds the checks by
them); cells tagged ``solution-only`` vanish, outputs and counts go. The same solutions give the same bytes.

Marked lines go, an invitation to write comes:

- inside a function (or a method) ``raise NotImplementedError("Write your answer here")`` takes their place.
  The lab still runs from top to bottom, because nothing but the check calls the function, and the check then
  says "○ not started";
- at the top level of a cell, where an exception would stop the lab, ``...  # Write your answer here`` does.
  If later lines need a value, the marker brings it along: ``### BEGIN SOLUTION: groups = None`` leaves
  ``groups = None  # Write your answer here``. This form works inside a function too. A ``%%ranks`` cell is
  treated like any other.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from course.outline import FILE_NAME

SOLUTION_ONLY = "solution-only"
INVITATION = "Write your answer here"
_BEGIN = re.compile(r"(?P<indent>[ \t]*)### BEGIN SOLUTION\s*(?::\s*(?P<stand_in>.*\S))?\s*")
_END = re.compile(r"[ \t]*### END SOLUTION\s*")
_MARKER = re.compile(r"#+\s*(BEGIN|END)\s+SOLUTION", re.IGNORECASE)
CHECK_CALL = re.compile(r"^check\.(\w+)\s*\(", re.MULTILINE)
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class LabError(ValueError):
    """What cannot be built or graded, in one sentence."""


class BadMarkers(ValueError):
    """The markers of a cell are not in order; the text says how, in words that follow the cell's name."""


def build(solutions: Path, labs: Path) -> list[Path]:
    """Write the labs that the solutions give and remove those whose solution is gone.

    Returns:
        The files that were written or removed; none if everything was up to date.

    Raises:
        LabError: if a solution is broken; then nothing is written.
    """
    wanted, changed = _wanted(solutions, labs), differences(solutions, labs)
    for path in changed:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8", newline="\n")
        else:
            path.unlink()
    return changed


def differences(solutions: Path, labs: Path) -> list[Path]:
    """The labs and references that are not what the solutions give: different, missing, or left over.

    Raises:
        LabError: if a solution is broken.
    """
    wanted = _wanted(solutions, labs)
    # Only names that a solution could have: a learner's own copy beside them is none of our business.
    there = [path for path in labs.glob("*.ipynb") if FILE_NAME.fullmatch(path.name)]
    now = {p: p.read_text(encoding="utf-8") for p in [*there, *labs.parent.glob("checks/reference/*.py")]}
    return [path for path in sorted({*now, *wanted}) if now.get(path) != wanted.get(path)]


def lab_from(solution: Path) -> str:
    """The text of the lab that one solution gives.

    Raises:
        LabError: naming the notebook, and the cell where there is one.
    """
    notebook = read_notebook(solution)
    cells, seen = [], set()
    for number, cell in enumerate(notebook["cells"], start=1):
        where = f"{solution.parent.name}/{solution.name}, cell {number}"
        if not cell.get("id"):
            raise LabError(f"{where} has no id: save the notebook with JupyterLab 3 or newer.")
        if cell["id"] in seen:
            raise LabError(f"{where} has the id {cell['id']!r} of an earlier cell.")
        seen.add(cell["id"])
        if SOLUTION_ONLY not in cell["metadata"].get("tags", []):
            try:
                cells.append(_lab_cell(cell))
            except BadMarkers as error:
                raise LabError(f"{where} (id {cell['id']}) {error}.") from None
    made = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def read_notebook(path: Path) -> Any:
    """A notebook as nbformat's current structure, with the text of each cell in one string.

    Raises:
        LabError: if the file is no notebook.
    """
    import nbformat

    name = f"{path.parent.name}/{path.name}"
    try:
        # Not nbformat.read: that would repair ids, and make up new ones, behind our back.
        notebook = nbformat.v4.reads(path.read_text(encoding="utf-8"))
        if notebook.nbformat != 4:
            raise ValueError(f"its format is {notebook.nbformat}")
        for cell in notebook.cells:
            if not isinstance(cell.source, str) or cell.cell_type not in ("code", "markdown", "raw"):
                raise ValueError("a cell is malformed")
            cell.setdefault("metadata", nbformat.from_dict({}))
    except OSError as error:
        raise LabError(f"{name} cannot be read: {error.strerror}.") from None
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise LabError(f"{name} is no notebook: {' '.join(str(error).split())}.") from None
    return notebook


def _lab_cell(cell: dict[str, Any]) -> dict[str, Any]:
    tags = cell["metadata"].get("tags")
    if CHECK_CALL.search(cell["source"]) and "### BEGIN SOLUTION" in cell["source"]:
        # The grader puts the cells that call checks back as they were, and would take the answer away.
        raise BadMarkers("holds a solution and the call of a check: give the check a cell of its own")
    made: dict[str, Any] = {
        "cell_type": cell["cell_type"],
        "id": cell["id"],
        "metadata": {"tags": tags} if tags else {},
        "source": cell["source"].splitlines(keepends=True),
    }
    if cell["cell_type"] == "code":
        made["source"] = strip_solution(cell["source"]).splitlines(keepends=True)
        made |= {"execution_count": None, "outputs": []}
    elif cell.get("attachments"):
        made["attachments"] = cell["attachments"]
    return made


def reference_from(solution: Path) -> str:
    """A solution's imports, functions, classes and constants: checks compare with it."""
    cells = [cell["source"] for cell in read_notebook(solution)["cells"] if cell["cell_type"] == "code"]
    text = re.sub(r"^[%!?].*$", "", "\n\n\n".join(cells), flags=re.MULTILINE)
    lines, parts = text.split("\n"), []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module == "checks":
            continue
        if isinstance(node, ast.Assign) and not ast.unparse(node.targets[0]).isupper():
            continue
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.Assign):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            parts.append("\n".join(lines[first - 1 : node.end_lineno]))
    return "\n\n\n".join(parts) + "\n"


def _wanted(solutions: Path, labs: Path) -> dict[Path, str]:
    if not solutions.is_dir():
        raise LabError(f"there is no folder {solutions} to build labs from.")
    wanted, checks = {}, labs.parent / "checks"
    for path in sorted(solutions.glob("*.ipynb")):
        if name := FILE_NAME.fullmatch(path.name):
            wanted[labs / path.name] = lab_from(path)
            if any("Reference(" in one.read_text(encoding="utf-8") for one in checks.glob(f"labs/{name[2]}/*.py")):
                wanted[checks / "reference" / f"{name[2]}.py"] = reference_from(path)
    return wanted


# ---------------------------------------------------------------------- one cell
def strip_solution(source: str) -> str:
    """Replace every marked part of a cell.

    Args:
        source: the cell of the solution.

    Returns:
        The cell of the lab; the same text if nothing is marked.

    Raises:
        BadMarkers: if markers are nested, unbalanced or misspelt, or the cell is no Python around them.
    """
    kept: list[str] = []
    holes: list[tuple[int, str, str | None]] = []  # line in ``kept``, indentation, stand-in
    begun = 0
    for number, line in enumerate(source.split("\n"), start=1):
        if begin := _BEGIN.fullmatch(line):
            if begun:
                raise BadMarkers(f"opens a second solution in line {number} before the one of line {begun} ends")
            begun = number
            holes.append((len(kept), begin["indent"], begin["stand_in"]))
            kept.append("")
        elif _END.fullmatch(line):
            if not begun:
                raise BadMarkers(f"ends a solution in line {number} that never began")
            begun = 0
        elif _MARKER.search(line):
            raise BadMarkers(f"has a misspelt marker in line {number}: {line.strip()!r}")
        elif not begun:
            kept.append(line)
    if begun:
        raise BadMarkers(f"never ends the solution that begins in line {begun}")
    if not holes:
        return source
    for place, indent, _ in holes:
        kept[place] = f"{indent}pass"
    bodies = _function_bodies("\n".join(kept))
    for place, indent, stand_in in holes:
        if stand_in is not None:
            kept[place] = f"{indent}{stand_in}  # {INVITATION}"
        elif any(first <= place + 1 <= last for first, last in bodies):
            kept[place] = f'{indent}raise NotImplementedError("{INVITATION}")'
        else:
            kept[place] = f"{indent}...  # {INVITATION}"
    return "\n".join(kept)


def _function_bodies(source: str) -> list[tuple[int, int]]:
    """First and last line of every function's body. IPython's own lines (%%ranks, !command) count as nothing."""
    lines = [re.sub(r"^(\s*)[%!?].*$", r"\1pass", line) for line in source.split("\n")]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError as error:
        raise BadMarkers(f"is no Python without its solution (line {error.lineno}: {error.msg})") from None
    return [
        (node.body[0].lineno, node.end_lineno or node.body[-1].lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
