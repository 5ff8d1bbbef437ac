"""Grading a folder of learners' labs: ``make grade DIR=folder``.

Every notebook runs in a kernel of its own with the course's checks put back in (handed_in.py, execute.py).
What its checks hand in is judged here, by the same checks that the learner saw, in fresh rank processes. A
notebook that hangs, crashes or is broken costs its learner a line, and nobody else anything.

Learners' code runs with your rights. Grade strangers in a container.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from utils.checks.grading.execute import Run, execute
from utils.checks.grading.handed_in import HandedIn, OfficialLab, find_handed_in, official_lab
from utils.checks.grading.table import Grades
from utils.course.build import LabError


def grade(folder: Path, labs: Path, *, cell_timeout: float = 60, limit: float = 600, jobs: int = 2) -> Grades:
    """Run and judge every lab in a folder.

    Args:
        folder: ``folder/NN_slug.ipynb`` (one learner) or ``folder/<learner>/NN_slug.ipynb``.
        labs: the official labs.
        cell_timeout: seconds after which a cell is interrupted.
        limit: seconds after which a notebook is stopped.
        jobs: how many notebooks run at a time.

    Raises:
        LabError: if the folder or the official labs cannot be used.
    """
    official = {lab.slug: lab for path in sorted(labs.glob("*.ipynb")) if (lab := official_lab(path)) is not None}
    work = find_handed_in(folder, set(official))
    used = [lab for slug, lab in official.items() if any(item.slug == slug for item in work)]
    grades = Grades(
        exercises=[exercise for lab in used for exercise in lab.exercises],
        learners=list(dict.fromkeys(item.learner for item in work)),
    )
    runs = asyncio.run(_execute_all(work, official, cell_timeout, limit, jobs))
    for handed_in, run in zip(work, runs, strict=True):
        _tell(f"judging {handed_in.path}")
        _judge(handed_in, run, official[handed_in.slug], grades)
    return grades


async def _execute_all(
    work: list[HandedIn], official: dict[str, OfficialLab], cell_timeout: float, limit: float, jobs: int
) -> list[Run]:
    places = asyncio.Semaphore(jobs)

    async def one(handed_in: HandedIn) -> Run:
        async with places:
            _tell(f"running {handed_in.path}")
            return await execute(handed_in, official[handed_in.slug], cell_timeout, limit)

    return await asyncio.gather(*(one(handed_in) for handed_in in work))


def _judge(handed_in: HandedIn, run: Run, lab: OfficialLab, grades: Grades) -> None:
    from utils.checks.answers import Answer
    from utils.checks.verdicts import WRONG, Verdict

    notes = grades.notes.setdefault((handed_in.learner, lab.slug), [])
    if run.note:
        notes.append(run.note)
    for exercise in lab.exercises:
        record: dict[str, Any] = run.answers.get(exercise.name, {})
        if "failed" in record:
            notes.append(f"{exercise.title}: nothing to check ({record['failed']}).")
        elif "refused" in record:
            verdict = Verdict(WRONG, str(record["refused"]))
            grades.verdicts[handed_in.learner, lab.slug, exercise.name] = verdict
        elif record:
            try:
                names = exercise.parameters
                answers = [Answer.from_json(*pair) for pair in zip(names, record["answers"], strict=True)]
            except (ValueError, KeyError, TypeError, AttributeError):
                notes.append(f"{exercise.title}: what was handed in cannot be read.")
                continue
            grades.verdicts[handed_in.learner, lab.slug, exercise.name] = exercise.verdict(*answers)


def _tell(what: str) -> None:
    """A sign of life for whoever watches; not for logs."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


def print_grades(grades: Grades, csv_file: Path) -> None:
    """Print the table and write the CSV file.

    Raises:
        LabError: if the file cannot be written.
    """
    _tell("")
    print(grades.text())
    try:
        grades.write_csv(csv_file)
    except OSError as error:
        raise LabError(f"{csv_file} cannot be written: {error.strerror}.") from None
    print(f"\n{csv_file} holds the same as a table.")
