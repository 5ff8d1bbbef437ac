"""Known answers to the exercises of a lab, as files, and what tests need to judge them.

``tests/answers/slug/<exercise>/wrong_*.py`` defines the functions that the exercise asks for, with a
plausible mistake, and says in ``REJECTED_WITH`` which part of the check's sentence is meant for this mistake.
``right_*.py`` beside it is a right answer, written differently from the solution. Names that every rank has
(``rank``, ``world_size``, ``device``, ``torch``, ``dist``) need no import.

Where the check judges by contract, all of an exercise's answers are in one file, ``tests/answers/slug/<exercise>.py``
(see known_answers.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import known_answers
import nbformat
from kernel_support import Kernel, as_text
from known_answers import Known

from utils.checks.framework import Exercise
from utils.checks.verdicts import Verdict

ANSWERS = Path(__file__).resolve().parents[1] / "answers"
WRONG_AT_LEAST, RIGHT_AT_LEAST = 5, 1
RIGHT_DIFFERENTLY = 3  # in one file, beside the right answer itself


def answer_files(folder: Path, exercise: Exercise, kind: str) -> list[Path]:
    """The files of one kind ("wrong" or "right") for an exercise; ``folder`` holds one folder per lab."""
    return sorted((folder / exercise.lab / exercise.name).glob(f"{kind}_*.py"))


def answers_file(folder: Path, exercise: Exercise) -> Path:
    """Where all answers to an exercise are that is judged by contract."""
    return folder / exercise.lab / f"{exercise.name}.py"


def answers_in(folder: Path, exercise: Exercise) -> list[Known]:
    """The answers in the one file of an exercise; none if there is no such file."""
    path = answers_file(folder, exercise)
    return known_answers.load(path, exercise.parameters) if path.exists() else []


def strangers(folder: Path, exercises: list[Exercise]) -> list[Path]:
    """Files under ``folder`` that belong to no exercise (a typing error in a name, say)."""
    known = {
        path for exercise in exercises for kind in ("wrong", "right") for path in answer_files(folder, exercise, kind)
    }
    known |= {answers_file(folder, exercise) for exercise in exercises}
    return sorted(set(folder.rglob("*.py")) - known)


def judge_file(path: Path, exercise: Exercise) -> tuple[Verdict, str]:
    """What the check says about a file of answers, and the file's REJECTED_WITH ("" if it has none)."""
    answers: dict[str, Any] = {"__name__": "answers"}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), answers)
    missing = [name for name in exercise.parameters if name not in answers]
    assert not missing, f"{path} does not define {', '.join(missing)}"
    verdict = exercise.verdict(*(answers[name] for name in exercise.parameters))
    return verdict, answers.get("REJECTED_WITH", "")


def assert_rejected(path: Path, exercise: Exercise) -> None:
    """The file is wrong, and the check says so with the sentence that is meant for it."""
    verdict, sentence = judge_file(path, exercise)
    assert sentence, f"{path} does not say REJECTED_WITH"
    assert verdict.state == "wrong", f"{path} is not rejected: {verdict}"
    assert sentence in repr(verdict), f"{path} is rejected with another sentence: {verdict}"


def assert_accepted(path: Path, exercise: Exercise) -> None:
    """The file is right, and the check finds it so."""
    verdict, _ = judge_file(path, exercise)
    assert verdict.state == "right", f"{path} is not accepted: {verdict}"


def assert_judged(known: Known, exercise: Exercise) -> None:
    """A right answer is accepted, a wrong one is refused with the sentence that is meant for it."""
    verdict = exercise.verdict(*(known.functions[name] for name in exercise.parameters))
    assert verdict.state == known.kind, f"{known.name!r} is {known.kind}: {verdict}"
    assert known.says in repr(verdict), f"{known.name!r} is refused with another sentence: {verdict}"


def assert_enough_answers(folder: Path, exercise: Exercise) -> None:
    """The check was tried against enough answers that it did not make up itself."""
    if found := answers_in(folder, exercise):
        kinds = [known.kind for known in found]
        assert kinds.count("wrong") >= WRONG_AT_LEAST, answers_file(folder, exercise)
        assert kinds.count("right") > RIGHT_DIFFERENTLY, answers_file(folder, exercise)
        return
    for kind, at_least in (("wrong", WRONG_AT_LEAST), ("right", RIGHT_AT_LEAST)):
        count = len(answer_files(folder, exercise, kind))
        where = f"{folder.name}/{exercise.lab}/{exercise.name}/{kind}_*.py"
        assert count >= at_least, f"{where}: {count} of at least {at_least}"


def shown_verdicts(notebook: Path | Any) -> dict[str, str]:
    """By exercise, the text that the cell with its check shows in an executed notebook."""
    from utils.course.build import CHECK_CALL

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
