"""The house: packages import each other downwards only, without a circle, and keep to their size."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from course.outline import ROOT
from course.size import BUDGETS, CRUMBS, FLOORS, LONGEST, crumbs, modules

NOBODY = {"tests", "labs", "notebooks", "solutions", "benchmarks", "scripts", "publish"}
"""What no package may import."""


def names_in(path: Path) -> set[str]:
    """What a module imports, inside functions and for types too, under full names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _against(package: str, imported: set[str]) -> set[str]:
    """Those of the imported names that stand above a package, or in no package at all."""
    above = NOBODY | set(FLOORS[: FLOORS.index(package)])
    return {name for name in imported if name.split(".")[0] in above}


def test_every_package_has_a_floor_and_a_budget() -> None:
    there = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    counted = {folder for folders in BUDGETS for folder in folders}
    assert there == set(FLOORS) <= counted
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= counted, "a folder without a budget"


@pytest.mark.parametrize("package", FLOORS)
def test_packages_import_downwards_only(package: str) -> None:
    paths = modules(package)
    against = {str(path.relative_to(ROOT)): found for path in paths if (found := _against(package, names_in(path)))}
    assert against == {}


def test_an_import_upwards_is_seen() -> None:
    assert _against("utils", {"simgpu.time.clock", "os"}) == {"simgpu.time.clock"}
    assert _against("checks", {"tests.support", "utils.draw"}) == {"tests.support"}


def _graph() -> dict[str, set[str]]:
    paths = [path for package in FLOORS for path in modules(package) if path.name != "__init__.py"]
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    return {name: names_in(path) & set(named) - {name} for name, path in named.items()}


def test_modules_import_each_other_in_one_direction() -> None:
    graph = _graph()
    assert len(graph) > 100
    TopologicalSorter(graph).prepare()  # raises CycleError at a circle, and names it
    one, others = next((name, others) for name, others in graph.items() if others)
    graph[next(iter(others))].add(one)
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()


def _unmapped(init: Path) -> list[str]:
    """Modules and folders of a package that its ``__init__`` does not name."""
    text = init.read_text(encoding="utf-8")
    beside = {path.stem for path in init.parent.glob("*.py")} | {
        path.parent.name for path in init.parent.glob("*/*.py")
    }
    return sorted(name for name in beside if not name.startswith("__") and not re.search(rf"\b{name}\b", text))


@pytest.mark.parametrize("package", FLOORS)
def test_the_init_of_each_package_is_a_map_of_its_modules(package: str) -> None:
    inits = [path for path in modules(package) if path.name == "__init__.py"]
    inits = inits[:1] if package == "checks" else inits  # (labs' folders say it by exercise)
    assert {str(init.relative_to(ROOT)): missing for init in inits if (missing := _unmapped(init))} == {}


@pytest.mark.parametrize("packages", BUDGETS, ids=" and ".join)
def test_packages_keep_to_their_budget(packages: tuple[str, ...]) -> None:
    lines = {package: sum(modules(package).values()) for package in packages}
    assert sum(lines.values()) <= BUDGETS[packages], "cut elsewhere what you have added (`make size` prints the table)"


@pytest.mark.parametrize("folders", BUDGETS, ids=" and ".join)
def test_no_module_is_too_long_for_a_sitting(folders: tuple[str, ...]) -> None:
    sizes = {path.name: lines for folder in folders for path, lines in modules(folder).items()}
    assert {name: lines for name, lines in sizes.items() if lines > LONGEST} == {}


@pytest.mark.parametrize("package", FLOORS)
def test_few_modules_are_crumbs(package: str) -> None:
    sizes = modules(package)
    assert len(crumbs(sizes)) <= len(sizes) / CRUMBS, crumbs(sizes)
