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
BUDGETS = {("utils",): 9_240, ("simgpu",): 10_590, ("lessons", "course"): 8_020, ("checks",): 18_830}
"""Lines that these packages have together at most."""
LONGEST = 500
CRUMB, CRUMBS = 60, 5  # shorter than so many lines; at most one in so many modules is


def modules(package: str) -> dict[Path, int]:
    """Each module of a package with its lines."""
    return {path: len(path.read_bytes().splitlines()) for path in sorted((ROOT / package).rglob("*.py"))}


def crumbs(sizes: dict[Path, int]) -> list[Path]:
    """The modules that are hardly one; a package's ``__init__`` and ``__main__`` have to be there."""
    return [path for path, lines in sizes.items() if lines < CRUMB and not path.name.startswith("__")]


def rows() -> Iterator[tuple[str, ...]]:
    """The table: a package a row, then what those of one budget have together."""
    yield "package", "modules", f"under {CRUMB}", "lines", "longest module", "budget"
    for packages, budget in BUDGETS.items():
        for package in packages:
            sizes = modules(package)
            longest = max(sizes, key=lambda path: sizes[path])
            yield (
                package,
                str(len(sizes)),
                str(len(crumbs(sizes))),
                f"{sum(sizes.values()):,}",
                f"{longest.relative_to(ROOT)} {sizes[longest]}",
                f"{budget:,}" if len(packages) == 1 else "",
            )
        if len(packages) > 1:
            total = sum(sum(modules(package).values()) for package in packages)
            yield " + ".join(packages), "", "", f"{total:,}", "", f"{budget:,}"


if __name__ == "__main__":
    table = list(rows())
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())
