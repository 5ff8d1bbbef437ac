"""The README's architecture: what it draws is there, and packages import each other along its arrows only."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

from utils.course.outline import ROOT

SECTION = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Architecture\n")[1].split("\n## ")[0]
TREE, ARROWS = re.findall(r"^```\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
PACKAGES = {path.name for path in (ROOT / "utils").iterdir() if path.is_dir() and any(path.glob("*.py"))}


def _drawn() -> list[str]:
    """Paths in the tree; two spaces deeper is a folder deeper."""
    paths, folders = [], []
    for line in TREE.splitlines():
        indent, name = re.match(r"( *)(\S+)  ?\S?", line).groups()
        folders = [*folders[: len(indent) // 2], name]
        paths.append("".join(folders))
    return paths


def _arrows(text: str) -> set[tuple[str, str]]:
    """Pairs of who may import whom."""
    pairs = set()
    for line in text.splitlines():
        groups = [part.split(", ") for part in line.strip().split(" → ")]
        pairs |= {(a, b) for left, right in pairwise(groups) for a in left for b in right}
    return pairs


def _reach(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows, and what follows from two in a row."""
    while more := {(a, d) for a, b in arrows for c, d in arrows if b == c} - arrows:
        arrows = arrows | more
    return arrows


def _names(path: Path) -> set[str]:
    """What a module imports, inside functions and for types too, under full names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _imported(path: Path) -> set[str]:
    """Packages of utils that a module imports."""
    return {name.split(".")[1] for name in _names(path) if name.startswith("utils.")} & PACKAGES


def test_the_tree_names_what_is_there_and_every_package() -> None:
    drawn = _drawn()
    assert [path for path in drawn if not (ROOT / path).exists()] == []
    assert {f"utils/{name}/" for name in PACKAGES} <= set(drawn)
    assert len(drawn) == len(set(drawn))


def test_utils_has_at_most_ten_entries_on_its_first_floor() -> None:
    there = {path.name for path in (ROOT / "utils").iterdir() if path.name in PACKAGES or path.suffix == ".py"}
    assert len(there - {"__init__.py"}) <= 10


def test_no_module_of_utils_is_longer_than_one_can_read_in_a_sitting() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "utils").rglob("*.py")}
    assert {path.name: length for path, length in lengths.items() if length > 300} == {}


def test_packages_import_each_other_along_the_arrows_only() -> None:
    allowed = _reach(_arrows(ARROWS))
    against = [
        f"{path.relative_to(ROOT)} imports utils.{other}"
        for package in sorted(PACKAGES)
        for path in sorted((ROOT / "utils" / package).rglob("*.py"))
        for other in sorted(_imported(path))
        if other != package and (package, other) not in allowed
    ]
    assert against == []


def test_the_arrows_make_no_circle_and_one_that_does_is_seen() -> None:
    arrows = _arrows(ARROWS)
    assert not [a for a, b in _reach(arrows) if a == b]
    assert ("draw", "draw") in _reach(arrows | {("hardware", "checks")})


def test_modules_import_each_other_in_one_direction() -> None:
    files = [path for path in (ROOT / "utils").rglob("*.py") if path.name != "__init__.py"]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    graph = {name: _names(path) & set(modules) - {name} for name, path in modules.items()}
    assert len(graph) > 100
    TopologicalSorter(graph).prepare()  # raises CycleError at a circle, and names it
