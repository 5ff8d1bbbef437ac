"""Grading a folder of learners' labs: each notebook is run, and then judged, in a sandbox of its own.

This process runs no learner's code and unpickles nothing of theirs. It takes a verdict from ``inside.py`` alone.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.engine.verdicts import WRONG, Verdict
from checks.grade.handed_in import HandedIn, find_handed_in, printable
from checks.grade.official import OfficialLab, official_labs
from checks.grade.sandbox import Interrupted, Limits, Sandbox, Sandboxes
from checks.grade.table import Grades
from course.build import LabError

_SLACK = 60  # seconds that a check may take beyond its own time-out: it imports torch first
_MOST_NOTES, _LONGEST_NOTE = 20, 500
_HOW = {"memory": "it used more memory than is allowed here", "time": "it did not end in time"}


@dataclass
class Result:
    """What came of one notebook: by exercise what its checks said, and sentences about the whole."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(printable(sentence[:_LONGEST_NOTE]))


def grade(  # noqa: PLR0913
    folder: Path,
    labs: Path,
    *,
    limits: Limits | None = None,
    jobs: int = 2,
    same_user: bool = False,
    only: Mapping[str, set[int]] | None = None,
    begin: Callable[[str], None] = lambda words: None,
    each: Callable[[Grades, str, str], None] = lambda grades, learner, lab: None,
    stop: threading.Event | None = None,
) -> Grades:
    """Run and judge every lab in a folder.

    Args:
        folder: see handed_in.py.
        labs: the official labs.
        limits: of time and memory.
        jobs: how many notebooks run at a time; one of them is judged at a time.
        same_user: see sandbox.py.
        only: by lab the numbers of the exercises that count; of a lab that is not in it, all do.
        begin: is told what learners' code can do here, before any of it runs.
        each: called after each notebook with all grades so far, the learner and the lab.
        stop: set it, and the grading ends: what was not graded is ``waiting``. At the end it is set.

    Raises:
        LabError: if the folder or the official labs cannot be used.
    """
    official = official_labs(labs)
    work, notes = find_handed_in(folder, official)
    used = [lab for slug, lab in official.items() if any(item.slug == slug for item in work)]
    grades = Grades(
        exercises=[
            exercise
            for lab in used
            for number, exercise in enumerate(lab.exercises, start=1)
            if number in (only or {}).get(lab.slug, {number})
        ],
        learners=list(notes),
        notes={(learner, ""): said for learner, said in notes.items()},
        waiting={(item.learner, item.slug) for item in work},
    )
    judging, stop = threading.Lock(), stop or threading.Event()
    with contextlib.suppress(Interrupted), Sandboxes(folder.resolve(), limits or Limits(), same_user, stop) as place:
        begin(place.words)
        pool = ThreadPoolExecutor(jobs)
        futures = {pool.submit(_grade_one, item, official[item.slug], place, judging): item for item in work}
        try:
            while futures and not stop.is_set():
                for future in wait(futures, timeout=0.5, return_when=FIRST_COMPLETED).done:
                    item, result = futures.pop(future), future.result()
                    grades.waiting.discard((item.learner, item.slug))
                    grades.notes[item.learner, item.slug] = result.notes
                    for name, verdict in result.verdicts.items():
                        grades.verdicts[item.learner, item.slug, name] = verdict
                    each(grades, item.learner, item.slug)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    return grades


def _grade_one(item: HandedIn, lab: OfficialLab, place: Sandboxes, judging: threading.Lock) -> Result:
    result = Result(notes=[item.note] if item.note else [])
    if item.notebook is None:
        return result
    try:
        with place.sandbox() as sandbox:
            sandbox.copy(item.path.parent, files_only=item.alone)
            handed_in = _run(sandbox, lab.cells_to_run(item.notebook), place.limits, result, lab)
            with judging:
                _judge(sandbox, lab, handed_in, result)
    except Interrupted:
        raise
    except Exception as error:  # one notebook that is stranger than we thought costs nobody else anything
        kind = "" if isinstance(error, LabError) else f"{type(error).__name__}: "
        result.note(f"not graded, for something went wrong here: {kind}{error}")
    return result


def _run(
    sandbox: Sandbox, cells: list[dict[str, Any]], limits: Limits, result: Result, lab: OfficialLab
) -> dict[str, str]:
    """Run the notebook: the files in which answers are, by exercise."""
    request = {"answers": str(sandbox.folder / "answers"), "cells": cells, "cell_seconds": limits.cell}
    lines, why, _ = sandbox.run("notebook", request, limits.notebook)
    titles = {exercise.name: exercise.title for exercise in lab.exercises}
    files: dict[str, str] = {}
    for said in lines:
        name = str(said.get("exercise"))
        if name in titles and "file" in said:
            files[name] = str(said["file"])
        elif name in titles:
            result.note(f"{titles[name]}: nothing to check ({said.get('failed')}).")
        elif note := str(said.get("note", "")):
            result.note(note)
    memory = f"{limits.memory / (1 << 30):g} GB"
    ends = {
        "memory": f"the notebook was stopped: it used more than {memory} of memory.",
        "time": f"the notebook was stopped after {limits.notebook:.0f} s.",
        "itself": "the notebook ended the program that ran it; what follows was not run.",
    }
    if why:
        result.note(ends[why])
    return files


def _judge(sandbox: Sandbox, lab: OfficialLab, files: dict[str, str], result: Result) -> None:
    """Ask for a verdict on each exercise; one that ends the judge is wrong, and the next has a new judge."""
    left = [exercise for exercise in lab.exercises if exercise.name in files]
    while left:
        request = {
            "checks": lab.checks.__name__,
            "answers": str(sandbox.folder / "answers"),
            "handed_in": [(exercise.name, files[exercise.name]) for exercise in left],
            "secret": secrets.token_hex(16),
        }
        seconds = sum(_SLACK + exercise.timeout for exercise in left)
        lines, why, _ = sandbox.run("judge", request, seconds)
        for said in lines:
            if said.pop("secret", "") == request["secret"] and said.pop("exercise") == left[0].name:
                said["passed"] = tuple(said["passed"])
                result.verdicts[left.pop(0).name] = Verdict(**said)
        if left:
            words = _HOW.get(why, "the answer stops or ends the process that judges it")
            result.verdicts[left.pop(0).name] = Verdict(WRONG, f"the check was ended from inside: {words}.")
