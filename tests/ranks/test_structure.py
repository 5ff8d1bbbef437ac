"""utils.ranks could be lifted out: of utils it imports nothing else but who counts GPUs, and in one direction."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import utils.ranks
from course.size import FLOORS

FOLDER = Path(utils.ranks.__file__).parent
VARIABLE = re.compile(r"\b((?:COURSE|RANKS)_[A-Z_]+)=")


def imports_of(file: Path) -> set[str]:
    """The modules that a module imports, wherever in it, under their full names."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_it_imports_nothing_else_of_utils_but_who_counts_gpus():
    imported = set().union(*map(imports_of, FOLDER.glob("*.py")))
    ours = {name for name in imported if name.split(".")[0] == "utils"}
    assert {name for name in ours if not name.startswith(("utils.ranks", "utils.hardware.nvml"))} == set()


def test_its_modules_import_each_other_in_one_direction():
    modules = {f"utils.ranks.{file.stem}": file for file in FOLDER.glob("*.py") if file.stem != "__init__"}
    graph = {name: imports_of(file) & set(modules) for name, file in modules.items()}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError at a circle
    assert order.index("utils.ranks.wire") < order.index("utils.ranks.gather") < order.index("utils.ranks.world")


def test_it_knows_nothing_of_simulated_gpus():
    words = re.compile(r"simgpu|simccl|--gpu|--shapes|%ranks timeline", re.IGNORECASE)
    assert {file.name: found for file in FOLDER.glob("*.py") if (found := words.findall(file.read_text()))} == {}
    from utils.ranks.magics import RanksMagics

    assert len(words.findall(RanksMagics.ranks.__doc__)) > 3  # and yet the reader is told


def test_loading_the_magics_imports_no_torch():
    code = "import sys, utils.ranks.magics; print(sorted({'torch', 'simgpu'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_it_reads_no_variable_of_the_course():
    assert {file.name for file in FOLDER.glob("*.py") if "COURSE_" in file.read_text()} == set()


def test_variables_that_readers_are_told_of_are_read_somewhere():
    root = FOLDER.parents[1]
    told = {
        name for file in [root / "README.md", *root.glob("docs/*.md")] for name in VARIABLE.findall(file.read_text())
    }
    code = [root / "Makefile", *(file for name in FLOORS for file in root.glob(f"{name}/**/*.py"))]
    code += root.glob("notebooks/*.ipynb")
    read = {name for file in code for name in re.findall(r"\w+", file.read_text())}
    assert "RANKS_TIMEOUT" in told
    assert told - read == set()
