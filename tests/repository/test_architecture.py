"""The house: packages import each other downwards only, without a circle, and keep to their size."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from course import architecture
from course.architecture import names_in
from course.outline import ROOT
from course.size import BUDGETS, CRUMBS, FLOORS, LONGEST, crumbs, modules

NOBODY = {"tests", "labs", "notebooks", "solutions", "benchmarks", "scripts", "book"}
"""What no package may import."""


def _against(package: str, imported: set[str]) -> set[str]:
    """Those of the imported names that stand above a package, or in no package at all."""
    above = NOBODY | set(FLOORS[: FLOORS.index(package)])
    return {name for name in imported if name.split(".")[0] in above}


def test_every_package_has_a_floor_and_a_budget() -> None:
    there = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert there == set(FLOORS) == {package for packages in BUDGETS for package in packages}


@pytest.mark.parametrize("package", FLOORS)
def test_packages_import_downwards_only(package: str) -> None:
    paths = modules(package)
    against = {str(path.relative_to(ROOT)): found for path in paths if (found := _against(package, names_in(path)))}
    assert against == {}


def test_an_import_upwards_is_seen() -> None:
    assert _against("utils", {"simgpu.time.clock", "os"}) == {"simgpu.time.clock"}
    assert _against("checks", {"tests.support", "utils.draw"}) == {"tests.support"}


def test_the_pictures_of_the_packages_are_what_their_imports_give() -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in architecture.FOLDER.glob("*.svg")}
    assert stored == architecture.pictures(), "draw them again: python -m course.architecture"


def test_an_arrow_that_others_imply_is_left_out_and_a_new_import_changes_the_picture() -> None:
    graph, role = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": set()}, dict.fromkeys("abcd", "")
    assert architecture.reduced(graph) == {"a": {"b"}, "b": {"c"}, "c": set(), "d": set()}
    before = architecture.draw("four", graph, role)
    assert "a imports b; b imports c." in before
    assert architecture.draw("four", {**graph, "d": {"c"}}, role) != before


@pytest.mark.parametrize("package", FLOORS)
def test_no_arrow_runs_through_a_box_and_none_leaves_the_picture(package: str) -> None:
    svg = architecture.draw(package, *architecture.imports(package))
    number = r'"([\d.]+)"'
    boxes = re.findall(rf'<rect x={number} y={number} width={number} height="26"', svg)
    ends = [[*map(float, one.split(","))] for line in re.findall(r'points="([^"]+)"', svg) for one in line.split()]
    wide_is = float(re.search(r'viewBox="0 0 ([\d.]+) ', svg)[1])
    assert len(boxes) == len(architecture.imports(package)[0])
    for x, y, wide in (map(float, box) for box in boxes):
        assert x > 0 and x + wide < wide_is
        inside = [one for one in ends if x < one[0] < x + wide and y + 5 < one[1] < y + architecture.HIGH]
        assert inside == [], "(a head that comes flat reaches some pixels below the upper edge)"
    assert all(0 < one[0] < wide_is for one in ends)


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


@pytest.mark.parametrize("package", FLOORS)
def test_modules_are_neither_too_long_for_a_sitting_nor_crumbs(package: str) -> None:
    sizes = modules(package)
    assert {path.name: lines for path, lines in sizes.items() if lines > LONGEST} == {}
    assert len(crumbs(sizes)) <= len(sizes) / CRUMBS, crumbs(sizes)
