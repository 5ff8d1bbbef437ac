"""What fails once is tried again where that is asked for; what fails twice has failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

AGAIN = Path(__file__).with_name("again.py")
FAILS_ONCE = "import pathlib; seen = pathlib.Path('seen')\nif not seen.exists():\n    seen.touch(); 1 / 0"


def _run(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, AGAIN, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_notebook_that_fails_once_is_run_once_more_whole_and_alone_and_named(tmp_path):
    for name, last in (("good", "x += 1"), ("shaky", FAILS_ONCE)):
        notebook = new_notebook(cells=[new_code_cell("x = 1"), new_code_cell(last), new_code_cell("assert x")])
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    code, text = _run(tmp_path, "--again", "good.ipynb", "shaky.ipynb", "--", "-q", "--nbval", "--nbval-current-env")
    assert code == 0, text
    assert "run once more:\n    shaky.ipynb\n" in text and "Passed the second time" in text
    assert "3 passed" in text.partition("run once more")[2], "the whole notebook, and only this one"


def test_without_being_asked_nothing_is_tried_again(tmp_path):
    (tmp_path / "test_shaky.py").write_text(f"def test_it():\n    exec({FAILS_ONCE!r})\n")
    code, text = _run(tmp_path, "test_shaky.py", "--", "-q")
    assert code == 1 and "once more" not in text


def test_what_fails_twice_has_failed(tmp_path):
    (tmp_path / "test_broken.py").write_text("def test_it(): 1 / 0\ndef test_other(): pass\n")
    code, text = _run(tmp_path, "--again", "test_broken.py", "--", "-q")
    assert code == 1 and "Failed twice:\n    test_broken.py::test_it\n" in text


def test_a_test_is_tried_again_alone_with_what_its_module_has_measured(tmp_path):
    (tmp_path / "test_shaky.py").write_text(
        "import pathlib, pytest\n"
        "@pytest.fixture(scope='module')\n"
        "def measured():\n"
        "    seen = pathlib.Path('seen')\n"
        "    if seen.exists(): return 2\n"
        "    seen.touch(); return 1\n"
        "@pytest.mark.parametrize('text', ['a b', 'x[1]::y'])\n"
        "def test_it(measured, text): assert measured == 2 or text == 'a b'\n"
    )
    code, text = _run(tmp_path, "--again", "test_shaky.py", "--", "-q")
    assert code == 0, text
    assert "test_it[x[1]::y]" in text and "1 passed" in text.partition("run once more")[2]


def test_many_failures_are_no_accident(tmp_path):
    (tmp_path / "test_broken.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(11))\ndef test_it(n): assert False\n"
    )
    code, text = _run(tmp_path, "--again", "test_broken.py", "--", "-q")
    assert code == 1 and "once more" not in text


def test_what_cannot_be_run_at_all_fails(tmp_path):
    assert _run(tmp_path, "--again", "missing.ipynb", "--", "-q")[0] != 0
