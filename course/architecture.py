"""A picture of each package for docs/architecture.md, drawn from its imports: ``python -m course.architecture``.

A box is a module, or a folder seen as a whole. It stands above all that it imports; an arrow is an import that no other
arrows imply. How it looks says its role: the heading under which the package's docstring has it, or its folder.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

from course.outline import ROOT, slugs
from course.size import FLOORS
from utils.draw import palette
from utils.draw.svg import Canvas, text_width

FOLDER = ROOT / "docs" / "pictures"
OPENED = {"utils/ranks", *(f"lessons/{one}" for one in ("algorithms", "launchers", "pictures", "training"))}
"""Folders whose modules are boxes themselves."""
LABS = "a folder for each lab"
WIDTH, HIGH, GAP, STEP, TOP, SIZE, MOST = 770, 26, 10, 56, 92, 12, 6
LOOKS = (
    {"fill": palette.DEVICE},
    {"fill": palette.PROCESS, "dash": "5 3"},
    {"fill": palette.NODE, "stroke_width": 2.4},
    {"fill": palette.PANEL, "dash": "1.5 2.5", "stroke": palette.INK},
)
Graph = dict[str, set[str]]
Place = tuple[int, str, str]  # row and box, or where the arrow from one box to another passes that row


def names_in(path: Path) -> set[str]:
    """What a module imports, inside functions and for types too, under full names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def imports(package: str) -> tuple[Graph, dict[str, str]]:
    """What each box of a package imports of the others, and each box's role."""
    labs, box, role = slugs("solutions") if package == "checks" else [], {}, {}
    for folder in (ROOT / package, *(ROOT / one for one in sorted(OPENED) if one.startswith(f"{package}/"))):
        heads = _roles(folder)
        for path in sorted(folder.rglob("*.py")):
            first, *rest = path.relative_to(folder).with_suffix("").parts
            if first in ("__init__", "__main__") or f"{package}/{first}" in OPENED:
                continue
            name = LABS if first in labs else f"{first}/" if rest else first
            name = (
                f"{folder.name}/{name}" if role.get(name, folder) == "algorithms" else name
            )  # two are called all_reduce
            box[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = name
            role[name] = (
                "the labs"
                if first in labs
                else heads.get(first, folder.name if folder.name != package else "beside them")
            )
    graph: Graph = {name: set() for name in role}
    for module, name in box.items():
        path = ROOT / f"{module.replace('.', '/')}"
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        graph[name] |= {box[one] for one in names_in(path) if one in box} - {name}
    return graph, role


def _roles(folder: Path) -> dict[str, str]:
    """The heading of each module, if a package's docstring has several: lines that are not indented."""
    found, head = {}, ""
    for line in (ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or "").splitlines():
        if re.match(r"\s+\w", line):
            found |= {name: head for name in re.findall(r"\b(\w+)(?:\.py|/)", line) if name not in found}
        elif line.strip():
            head = line.strip()
    return found if len(set(found.values())) > 1 else {}


def reduced(graph: Graph) -> Graph:
    """Without the imports that others imply (transitive reduction)."""
    all_below: Graph = {}
    for name in TopologicalSorter(graph).static_order():
        all_below[name] = graph[name].union(*(all_below[one] for one in graph[name]))
    return {name: {one for one in of if not any(one in all_below[two] for two in of)} for name, of in graph.items()}


def _rows(arrows: Graph, role: dict[str, str]) -> list[list[Place]]:
    """Boxes from the top to the bottom, each as near to what imports it as what it imports allows."""
    order = [*TopologicalSorter(arrows).static_order()]
    above = {name: [one for one in order if name in arrows[one]] for name in order}
    level: dict[str, int] = {}
    for name in order:
        level[name] = 1 + max((level[one] for one in arrows[name]), default=-1)
    for name in reversed(order):
        level[name] = min((level[one] - 1 for one in above[name]), default=level[name])
    top = max(level.values())
    rows: list[list[Place]] = [[] for _ in range(top + 1)]
    alone = sorted((one for one in order if not arrows[one] and not above[one]), key=lambda one: (role[one], one))
    for name in sorted(set(order) - set(alone)):
        rows[top - level[name]].append((top - level[name], name, ""))
        for one in sorted(arrows[name]):
            for row in range(top - level[name] + 1, top - level[one]):
                rows[row].append((row, name, one))
    rows = [row for row in rows if row]
    for start in range(0, len(alone), MOST):
        rows.append([(len(rows), name, "") for name in alone[start : start + MOST]])
    return rows


def _wide(place: Place) -> float:
    return 4 if place[2] else text_width(place[1], SIZE, mono=True) + 12


def _middles(rows: list[list[Place]], ways: list[list[Place]], width: float) -> dict[Place, float]:
    """Where the middle of each box is: near what it is tied to, in an order that crosses few arrows."""
    tied: dict[Place, list[Place]] = defaultdict(list)
    for upper, lower in (pair for way in ways for pair in pairwise(way)):
        tied[upper].append(lower)
        tied[lower].append(upper)
    middle = {place: width * (i + 1) / (len(row) + 1) for row in rows for i, place in enumerate(row)}
    for turn in range(60):
        for row in rows[:: 1 if turn % 2 else -1]:
            wish = {one: sum(middle[other] for other in tied[one] or [one]) / len(tied[one] or [one]) for one in row}
            row.sort(key=lambda one: wish[one])
            end = 0.0
            for one in row:
                middle[one] = max(wish[one], end + GAP + _wide(one) / 2)
                end = middle[one] + _wide(one) / 2
            shift, end = sum(wish[one] - middle[one] for one in row) / len(row), width
            for one in reversed(row):
                middle[one] = min(middle[one] + shift, end - GAP - _wide(one) / 2)
                end = middle[one] - _wide(one) / 2
    edges = [middle[one] + side * _wide(one) / 2 for one in tied if tied[one] for side in (-1, 1)]
    return {one: at + (width / 2 - (min(edges) + max(edges)) / 2 if tied[one] else 0) for one, at in middle.items()}


def floors() -> tuple[Graph, dict[str, str]]:
    """Which package imports which."""
    used = {
        one: {name.split(".")[0] for path in (ROOT / one).rglob("*.py") for name in names_in(path)} for one in FLOORS
    }
    return {one: names & set(FLOORS) - {one} for one, names in used.items()}, dict.fromkeys(FLOORS, "")


def draw(title: str, graph: Graph, role: dict[str, str]) -> str:
    """The picture, as SVG."""
    arrows = reduced(graph)
    rows = _rows(arrows, role)
    row_of = {name: row for places in rows for row, name, passes in places if not passes}
    ways = [
        [(row_of[a], a, ""), *((row, a, b) for row in range(row_of[a] + 1, row_of[b])), (row_of[b], b, "")]
        for a in sorted(arrows)
        for b in sorted(arrows[a])
    ]
    width = max([WIDTH, *(GAP + sum(_wide(one) + GAP for one in row) for row in rows)])
    middle = _middles(rows, ways, width)
    says = "; ".join(f"{a} imports {', '.join(sorted(arrows[a]))}" for a in sorted(arrows) if arrows[a])
    high = TOP + STEP * len(rows) - STEP + HIGH + 16
    canvas = Canvas(width, high, title, f"{title}: {says}.")
    x = GAP
    looks = dict(zip(dict.fromkeys(role.values()), LOOKS, strict=False))
    for name, look in looks.items() if len(looks) > 1 else ():
        canvas.box(x, 44, 26, 16, **look)
        canvas.text(x + 34, 57, name, 13, "start")
        x += 60 + text_width(name, 13)
    for way in ways:
        points = [(middle[one], TOP + STEP * one[0] + edge) for one in way for edge in (0, HIGH)]
        canvas.line(points[1:-1], palette.DARK_GREY, 1.2, arrow="end")
    for place in (one for row in rows for one in row if not one[2]):
        wide = _wide(place)
        canvas.box(
            middle[place] - wide / 2,
            TOP + STEP * place[0],
            wide,
            HIGH,
            place[1],
            size=SIZE,
            mono=True,
            **looks[role[place[1]]],
        )
    return canvas.svg()


def pictures() -> dict[str, str]:
    """Every picture by the name of its file."""
    drawn = {f"{one}.svg": draw(f"The modules of {one}", *imports(one)) for one in FLOORS}
    return {"floors.svg": draw("The packages", *floors()), **drawn}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture, encoding="utf-8", newline="\n")
