"""Known answers to the exercises of a lab, and what tests need to judge them.

All of an exercise's answers are in one file, ``tests/answers/slug/<exercise>.py`` (see known_answers.py).
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import known_answers
import nbformat
import pytest
from kernel_support import Kernel, as_text
from known_answers import Known

from checks.engine.answers import Answer
from checks.engine.exercises import Exercise
from checks.engine.judging import SEED
from course.build import CHECK_CALL, INVITATION

ANSWERS = Path(__file__).resolve().parents[1] / "answers"
WRONG_AT_LEAST = 5
RIGHT_DIFFERENTLY = 2  # beside the right answer itself


def answers_file(folder: Path, exercise: Exercise) -> Path:
    """Where all answers to an exercise are."""
    return folder / exercise.lab / f"{exercise.name}.py"


def answers_in(folder: Path, exercise: Exercise) -> list[Known]:
    """The answers in the one file of an exercise; none if there is no such file. With the check's own mistakes."""
    path, official = answers_file(folder, exercise), exercise.official
    if official is None:
        return known_answers.load(path, exercise.parameters) if path.exists() else []
    known = known_answers.load(path, exercise.parameters, official.program) if path.exists() else []

    def of(mistake: str) -> dict[str, Any]:
        return dict(zip(exercise.parameters, official.functions(mistake), strict=True))

    return known + [Known(mistake[:60], partial(of, mistake), mistake) for mistake in official.mistakes]


def strangers(folder: Path, exercises: list[Exercise]) -> list[Path]:
    """Files under ``folder`` that belong to no exercise (a typing error in a name, say)."""
    known = {answers_file(folder, exercise) for exercise in exercises}
    return sorted(set(folder.rglob("*.py")) - known)


def assert_judged(known: Known, exercise: Exercise) -> None:
    """A right answer is accepted, a wrong one is refused; with the usual cases also with the sentence meant for it.

    (Other cases, by COURSE_SEED, may show another of its mistakes first.)
    """
    verdict = exercise.verdict(*(known.functions[name] for name in exercise.parameters))
    assert verdict.state == known.kind, f"{known.name!r} is {known.kind}: {verdict}"
    usual = not int(os.environ.get(SEED) or 0)
    assert not usual or known.says in repr(verdict), f"{known.name!r} is refused with another sentence: {verdict}"


def assert_enough_answers(folder: Path, exercise: Exercise) -> None:
    """The check was tried against enough answers that it did not make up itself, each of which is a program."""
    answers = answers_in(folder, exercise)
    kinds = [known.kind for known in answers if known.functions]
    assert kinds.count("wrong") >= WRONG_AT_LEAST, answers_file(folder, exercise)
    assert kinds.count("right") > RIGHT_DIFFERENTLY, answers_file(folder, exercise)


def shown_verdicts(notebook: Path | Any) -> dict[str, str]:
    """By exercise, the text that the cell with its check shows in an executed notebook."""
    if isinstance(notebook, Path):
        notebook = nbformat.read(notebook, as_version=4)
    shown = {}
    for cell in notebook.cells:
        for name in CHECK_CALL.findall(cell.source) if cell.cell_type == "code" else ():
            texts = [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
            shown[name] = "\n".join(text for text in texts if text)
    return shown


def run_notebook(path: Path, kernel: Kernel, timeout: float = 120) -> Any:
    """Execute a notebook in its folder and in this kernel, without variables of an earlier one; not in its file.

    Raises:
        AssertionError: a cell fails that is not meant to.
    """
    notebook = nbformat.read(path, as_version=4)
    kernel.run(f"%reset -f\n%cd -q {path.parent}")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = nbformat.from_dict(kernel.run(cell.source, timeout))
            failed = any(output.output_type == "error" for output in cell.outputs)
            assert not failed or "raises-exception" in cell.metadata.get("tags", ()), as_text(cell.outputs)
    return notebook


def given_to_checks(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Execute a lab's cells in this process; by exercise, whether all that its check gets is still to be written.

    Raises:
        AssertionError: a check gets another number of functions than it takes.
    """
    given = {}

    def note(exercise: Exercise, *functions: Any) -> None:
        assert len(functions) == len(exercise.parameters), f"check.{exercise.name} takes {exercise.parameters}"
        cells = [Answer.of(function, exercise.name).sources.values() for function in functions]
        unwritten = all(any(INVITATION in text for text in texts) for texts in cells)
        given[exercise.name] = "not written" if unwritten else "written"

    monkeypatch.setattr(Exercise, "__call__", note)
    monkeypatch.chdir(path.parent)
    names: dict[str, Any] = {}
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type == "code":
            source = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
            known_answers.run(source, f"{path.stem}:{number}", names)
    return given
