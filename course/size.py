"""How large the house is, beside what it may be: ``make size`` prints it, and a test keeps it.

A package has modules of one subject each: none longer than one reads in a sitting, and few that are crumbs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from course.outline import ROOT

FLOORS = ("checks", "lessons", "course", "simgpu", "utils")
"""The packages, from the top: each may import what stands behind it."""
PREFIXES = tuple(f"{name}." for name in FLOORS)
"""How the names of their modules begin."""
BUDGETS = {
    ("utils",): 8_800,
    ("simgpu",): 10_210,
    ("checks",): 14_250,
    ("lessons", "course"): 7_700,
    ("tests/answers",): 6_700,
    ("tests",): 25_710,
    ("benchmarks", "scripts", "publish", "*.py"): 6_500,
}
"""Lines that these have together at most. A budget only falls; one that rises names what was deleted for it."""
GENERATED = "checks/reference"
"""Copies of the solutions, which `make labs` writes."""
LONGEST = 500
CRUMB, CRUMBS = 60, 5  # shorter than so many lines; at most one in so many modules is


def modules(folder: str) -> dict[Path, int]:
    """Each module below a folder with its lines ("*.py": those beside the folders).

    What has a budget of its own, and what is generated, does not count.
    """
    own = [name for names in BUDGETS for name in names if name.startswith(f"{folder}/")]
    paths = ROOT.glob(folder) if folder == "*.py" else (ROOT / folder).rglob("*.py")
    return {
        path: len(path.read_bytes().splitlines())
        for path in sorted(paths)
        if not any(path.is_relative_to(ROOT / name) for name in (*own, GENERATED))
    }


def crumbs(sizes: dict[Path, int]) -> list[Path]:
    """The modules that are hardly one; a package's ``__init__`` and ``__main__`` have to be there."""
    return [path for path, lines in sizes.items() if lines < CRUMB and not path.name.startswith("__")]


def rows() -> Iterator[tuple[str, ...]]:
    """The table: what has one budget is a row, then all together."""
    yield "folders", "modules", f"under {CRUMB}", "lines", "longest module", "budget"
    total = 0
    for folders, budget in BUDGETS.items():
        sizes = {path: lines for folder in folders for path, lines in modules(folder).items()}
        total += sum(sizes.values())
        longest = max(sizes, key=lambda path: sizes[path])
        yield (
            " + ".join(folders),
            str(len(sizes)),
            str(len(crumbs(sizes))),
            f"{sum(sizes.values()):,}",
            f"{longest.relative_to(ROOT)} {sizes[longest]}",
            f"{budget:,}",
        )
    yield "together", "", "", f"{total:,}", "", f"{sum(BUDGETS.values()):,}"


if __name__ == "__main__":
    table = list(rows())
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())
