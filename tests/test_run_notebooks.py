"""A notebook that fails once is tried again, whole, where that is asked for; one that fails twice has failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

RUN = Path(__file__).with_name("run_notebooks.py")
FAILS_ONCE = "import pathlib; seen = pathlib.Path('seen')\nif not seen.exists():\n    seen.touch(); 1 / 0"


def _run(folder: Path, source: str, *options: str) -> tuple[int, str]:
    for name, last in (("good", "x += 1"), ("shaky", source)):
        notebook = new_notebook(cells=[new_code_cell("x = 1"), new_code_cell(last), new_code_cell("assert x")])
        nbformat.write(notebook, folder / f"{name}.ipynb")
    command = [sys.executable, RUN, *options, "good.ipynb", "shaky.ipynb", "--", "-q", "--nbval-current-env"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("options", [["--again"], ["--again", "--lax"]])
def test_a_notebook_that_fails_once_is_run_once_more_alone_and_named(tmp_path, options):
    code, text = _run(tmp_path, FAILS_ONCE, *options)
    assert code == 0, text
    assert "Failed, and run once more: shaky.ipynb\n" in text and "Passed the second time" in text
    assert text.count("6 passed") == 0 and "3 passed" in text, "the whole notebook, and only this one"


def test_without_being_asked_nothing_is_tried_again(tmp_path):
    code, text = _run(tmp_path, FAILS_ONCE)
    assert code == 1 and "once more" not in text


def test_a_notebook_that_fails_twice_has_failed(tmp_path):
    code, text = _run(tmp_path, "1 / 0", "--again")
    assert code == 1 and "Failed twice: shaky.ipynb" in text


def test_what_cannot_be_run_at_all_fails(tmp_path):
    command = [sys.executable, RUN, "--again", "missing.ipynb", "--", "-q"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False).returncode != 0
