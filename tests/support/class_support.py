"""Classes of learners for tests of grading: labs that are quick to run, and notebooks that learners hand in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import toy_lab
from nbformat.v4 import new_notebook

from course.build import build

TOY, WORDS = "98_toy", "97_words"
NAMES = {"first": ["first"], "second": ["second"], "both": ["left", "right"], "never": ["never"]}
UNWRITTEN = "lambda: None"


def words_lab() -> Any:
    """The official lab "words": for each exercise a cell for the answer and a cell that calls the check."""
    cells = [toy_lab.code("start", "import toy_word_checks as check")]
    for exercise, functions in NAMES.items():
        answer = "\n".join(f"{name} = {UNWRITTEN}" for name in functions)
        cells.append(toy_lab.code(exercise, answer))
        cells.append(toy_lab.code(f"check-{exercise}", f"check.{exercise}({', '.join(functions)})"))
    return new_notebook(cells=cells)


def words(**answers: str) -> Any:
    """A learner's notebook of the lab "words"; each answer is the source of a cell: first, second, both, never."""
    notebook = words_lab()
    for exercise, source in answers.items():
        toy_lab.cell(notebook, exercise).source = source
    return notebook


def official(root: Path) -> Path:
    """Write the official labs; returns their folder."""
    toy_lab.write(toy_lab.solution(), root / "solutions" / f"{TOY}.ipynb")
    toy_lab.write(words_lab(), root / "solutions" / f"{WORDS}.ipynb")
    build(root / "solutions", root / "labs")
    return root / "labs"


def hand_in(folder: Path, learner: str, notebook: Any, name: str = WORDS) -> Path:
    """Write a learner's notebook."""
    path = folder / learner / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


@contextlib.contextmanager
def found_by_kernels() -> Iterator[pytest.MonkeyPatch]:
    """Kernels and judges that are started meanwhile find the checks of the labs that exist in tests only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        yield patch
