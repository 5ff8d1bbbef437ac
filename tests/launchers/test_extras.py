"""Opened without Ray, TensorFlow and the like, a lecture says so in one line and shows what is stored."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import nbformat
import pytest
from kernel_support import Kernel
from nbformat.v4 import new_code_cell, new_notebook, new_output

from lessons.launchers import extras

ROOT = Path(__file__).resolve().parents[2]
LECTURES = sorted(path for path in (ROOT / "notebooks").glob("*.ipynb") if "extras.need(" in path.read_text())
_spec = spec_from_file_location("horovod_wheel", ROOT / "scripts" / "frameworks" / "horovod_wheel.py")
horovod_wheel = module_from_spec(_spec)
_spec.loader.exec_module(horovod_wheel)


@pytest.fixture(scope="module")
def kernel():
    with Kernel() as running:
        yield running


def _shown(outputs: list[Any]) -> list[tuple[str, Any]]:
    """Outputs as comparable pairs: text printed in one piece; a value counts as any other display."""
    found: list[tuple[str, Any]] = []
    for output in outputs:
        if output["output_type"] == "stream":
            if found and found[-1][0] == output["name"]:
                found[-1] = (output["name"], found[-1][1] + output["text"])
            else:
                found.append((output["name"], output["text"]))
        elif output["output_type"] == "error":
            found.append(("stdout", "\n".join(output["traceback"]) + "\n"))
        else:
            found.append(("display", {mime: "".join(data) for mime, data in output["data"].items()}))
    return found


def test_what_is_missing_is_named_in_one_sentence():
    assert extras.missing("json", "no_such_module") == ["no_such_module"]
    assert extras.sentence(["ray"]).startswith("Ray is not installed here: ")
    assert extras.sentence(["ray", "optuna", "horovod"]).startswith("Ray, Optuna and Horovod are not installed here: ")
    with pytest.raises(ImportError, match="no_such_module is not installed here"):
        extras.need("ray_and_tuning", "json", "no_such_module")  # in no notebook


def test_cells_show_what_is_stored_and_do_not_run(kernel, tmp_path):
    picture = new_output("display_data", {"text/plain": "a picture", "text/html": "<b>picture</b>"})
    value = new_output("execute_result", {"text/plain": "42"}, execution_count=2)
    printed = new_output("stream", name="stdout", text="it was printed\n")
    failed = new_output("error", ename="ValueError", evalue="on purpose", traceback=["ValueError: on purpose"])
    cells = [
        new_code_cell("import no_such_module", outputs=[printed]),
        new_code_cell("%%no_such_magic\nno_such_module.f()", outputs=[picture, value]),
        new_code_cell("raise SystemExit", outputs=[failed]),
        new_code_cell("x = no_such_module"),
    ]
    (tmp_path / "notebooks").mkdir()
    nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / "98_toy.ipynb")
    kernel.run(
        f"from pathlib import Path\nfrom course import outline\n"
        f"from lessons.launchers import extras\noutline.FILES = Path({str(tmp_path)!r})"
    )
    said = kernel.run("extras.need('toy', 'json')\nextras.need('toy', 'no_such_module')")
    assert _shown(said)[0][1].count("\n") == 1 and "`make frameworks`" in _shown(said)[0][1]
    for cell in cells:
        assert _shown(kernel.run(cell.source + "\n")) == _shown(cell.outputs)
    assert _shown(kernel.run("1 + 1")) == [("display", {"text/plain": "2"})], "a learner's own cell runs"


@pytest.mark.parametrize("path", LECTURES, ids=lambda path: path.name[:2])
def test_a_lecture_opened_without_its_extra_shows_its_stored_outputs(path, kernel):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    hidden = "import sys; sys.modules.update(dict.fromkeys(['ray', 'optuna', 'tensorflow', 'mpi4py', 'horovod']))"
    kernel.run(f"import os, sys; os.chdir({str(ROOT / 'notebooks')!r})\n{hidden}\nfrom lessons.launchers import extras")
    kernel.run("import importlib; from course import outline; importlib.reload(outline); importlib.reload(extras)")
    first, *others = cells
    said = [text for kind, text in _shown(kernel.run(first.source)) if kind == "stdout"]
    assert len(said) == 1 and said[0].count("\n") == 1 and "not installed here: run `make frameworks`" in said[0]
    for cell in others:
        assert _shown(kernel.run(cell.source)) == _shown(cell.outputs), cell.source


def test_horovod_asks_for_the_c_plus_plus_that_torch_needs():
    before = 'set(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -std=c++14 -O3")\n# 14 workers\n'
    after = 'set(CMAKE_CXX_STANDARD 17)\nset(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -std=c++17 -O3")\n# 14 workers\n'
    assert horovod_wheel.with_cpp17(before) == after
