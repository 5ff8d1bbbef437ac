"""``make execute``: what it stores, what it refuses, and that nbval then finds the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course import notebooks
from course.__main__ import main

pytestmark = pytest.mark.extras  # a tool of authors; what starts a kernel for one sentence of it is `nightly`

ROOT = Path(__file__).parents[2]
COURSE = {"stage": "Play", "card": "toys", "teaches": "playing"}
SANITIZE = ROOT / "tests" / "nbval_sanitize.cfg"


def _write(path: Path, *cells: Any, **metadata: Any) -> Path:
    nbformat.write(new_notebook(cells=list(cells), metadata=metadata), path)
    return path


def _nbval(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env"]
    command += [
        "--nbval-cell-timeout=60",
        "--nbval-sanitize-with",
        str(SANITIZE),
        "--rootdir",
        str(path.parent),
        str(path),
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A notebook with everything that is hard to store alike."""
    path = _write(
        tmp_path_factory.mktemp("executed") / "toy.ipynb",
        new_code_cell("import sys\nprint('a', end='', flush=True)\nprint('b')", execution_count=17),
        new_code_cell("%load_ext utils", metadata={"execution": {"iopub.status.busy": "2026"}, "collapsed": True}),
        new_code_cell("%%ranks -n 2\nimport time\ntime.sleep(0.8)\nprint('from', rank)\nrank"),
        new_code_cell("%ranks"),
        new_code_cell("import torch\n\ntorch.ones(2) @ torch.ones(3)", metadata={"tags": ["raises-exception"]}),
        new_code_cell("import warnings\n\nwarnings.warn('look', stacklevel=1)"),
        new_code_cell(
            "import ipywidgets\n\nfigure = ipywidgets.interact(lambda n: print('n is', n), n=(1, 7))",
            metadata={"tags": ["interactive"]},
        ),
        new_code_cell("import os, pathlib\n\npathlib.Path('here.txt').touch()\nprint('pid', os.getpid(), object())"),
        widgets={"state": {}},
        language_info={"name": "python", "version": "3.99"},
        course=COURSE,
    )
    notebooks.execute(path, cell_timeout=60)
    return path


def _cells(path: Path) -> list[Any]:
    return list(nbformat.read(path, as_version=4).cells)


def test_counts_go_from_one_and_streams_are_joined(stored: Path) -> None:
    cells = _cells(stored)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [output.text for output in cells[0].outputs] == ["ab\n"]


def test_a_cell_on_ranks_is_stored_in_rank_order_without_its_live_view(stored: Path) -> None:
    printed, value = _cells(stored)[2].outputs
    assert printed.text == "rank 0: from 0\nrank 1: from 1\n"
    assert value.data["text/plain"] == "rank 0: 0\nrank 1: 1" and value.execution_count == 3


def test_nothing_of_the_machine_or_the_hour_is_stored(stored: Path) -> None:
    notebook = nbformat.read(stored, as_version=4)
    assert notebook.metadata == {**notebooks.METADATA, "course": COURSE}, "what it says of its place stays"
    assert notebook.cells[1].metadata == {}
    trace = "\n".join(notebook.cells[4].outputs[0].traceback)
    assert "\x1b[" in trace, "colours stay"
    text = stored.read_text(encoding="utf-8")
    for path in {str(ROOT), str(Path.home()), sys.prefix, "ipykernel_"} - {"/"}:
        assert path not in text, path
    assert text.endswith("}\n") and text.startswith('{\n "cells"')


def test_a_widget_is_stored_as_a_sentence_with_its_figure(stored: Path) -> None:
    outputs = _cells(stored)[6].outputs
    assert [output.text for output in outputs if output.output_type == "stream"] == ["n is 4\n"]
    shown = next(output for output in outputs if output.output_type == "display_data")
    assert dict(shown.data) == {"text/plain": notebooks.WIDGET_TEXT}


def test_nbval_finds_the_same_and_its_sanitizers_let_no_other_difference_pass(stored: Path, tmp_path: Path) -> None:
    same = _nbval(stored)
    assert same.returncode == 0, same.stdout[-3000:]
    changed = tmp_path / "changed.ipynb"
    changed.write_text(stored.read_text(encoding="utf-8").replace("from 1", "from 7"), encoding="utf-8")
    other = _nbval(changed)
    assert other.returncode == 1 and "Cell outputs differ" in other.stdout


def _failure(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    before = path.read_bytes()
    assert main(["execute", *options, str(path)]) == 1
    assert path.read_bytes() == before, "a notebook that failed is left as it was"
    return capsys.readouterr().err


def test_an_error_that_was_not_meant_is_named_with_its_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / "bad.ipynb", new_code_cell("x = 1"), new_code_cell("x / 0"), new_code_cell("never = 1"))
    told = _failure(path, capsys)
    assert "bad.ipynb: cell 2 failed with ZeroDivisionError: division by zero" in told
    assert "    x / 0" in told and "raises-exception" in told


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("source", "tags", "said"),
    [
        ("%load_ext utils\n%ranks push a b", [], "cell 1 failed with UsageError: "),
        ("1", ["raises-exception"], "cell 1 has the tag raises-exception and raised nothing"),
        ("import time\ntime.sleep(60)", [], "did not end within 5 s"),
        ("import os\nos._exit(3)", [], "the kernel died"),
    ],
)
def test_what_else_can_fail_is_named(source, tags, said, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / "bad.ipynb", new_code_cell(source, metadata={"tags": tags}))
    assert said in _failure(path, capsys, "--timeout", "5")


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["execute", str(tmp_path / "gone.ipynb")]) == 1
    assert "gone.ipynb cannot be read" in capsys.readouterr().err


def test_paths_leave_tracebacks_and_colours_stay() -> None:
    packages = f"{sys.prefix}/lib/python3.99/site-packages/torch/nn.py"
    text = f"File \x1b[32m{packages}:7\x1b[39m, in f\n"
    text += f"File {ROOT}/utils/hardware/links.py:3\nFile /tmp/ipykernel_12/345.py:1"
    assert notebooks.without_paths(text) == (
        "File \x1b[32msite-packages/torch/nn.py:7\x1b[39m, in f\nFile utils/hardware/links.py:3\nFile <cell>:1"
    )
