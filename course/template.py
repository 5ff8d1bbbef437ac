"""From the source of a solution's cell to what the learner gets.

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
import re

INVITATION = "Write your answer here"
_BEGIN = re.compile(r"(?P<indent>[ \t]*)### BEGIN SOLUTION\s*(?::\s*(?P<stand_in>.*\S))?\s*")
_END = re.compile(r"[ \t]*### END SOLUTION\s*")
_MARKER = re.compile(r"#+\s*(BEGIN|END)\s+SOLUTION", re.IGNORECASE)


class BadMarkers(ValueError):
    """The markers of a cell are not in order; the text says how, in words that follow the cell's name."""


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
