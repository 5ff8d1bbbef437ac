"""Grading a folder of learners' labs: each notebook is run, and then judged, in a sandbox of its own.

This process runs no learner's code and unpickles nothing of theirs. It takes a verdict from ``judge.py`` alone.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.framework import Exercise
from checks.grading.handed_in import HandedIn, find_handed_in, printable
from checks.grading.official import OfficialLab, official_labs
from checks.grading.program import Interrupted
from checks.grading.sandbox import Limits, Sandbox, Sandboxes
from checks.grading.table import Grades
from checks.verdicts import WRONG, Verdict
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


def grade(
    folder: Path,
    labs: Path,
    *,
    limits: Limits | None = None,
    jobs: int = 2,
    same_user: bool = False,
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
        begin: is told what learners' code can do here, before any of it runs.
        each: called after each notebook with all grades so far, the learner and the lab.
        stop: set it, and the grading is interrupted.

    Raises:
        LabError: if the folder or the official labs cannot be used.
        KeyboardInterrupt: ``each`` has seen what was graded until then.
    """
    official = official_labs(labs)
    work, notes = find_handed_in(folder, official)
    used = [lab for slug, lab in official.items() if any(item.slug == slug for item in work)]
    grades = Grades(
        exercises=[exercise for lab in used for exercise in lab.exercises],
        learners=list(notes),
        notes={(learner, ""): said for learner, said in notes.items()},
        waiting={(item.learner, item.slug) for item in work},
    )
    judging, stop = threading.Lock(), stop or threading.Event()
    with _interrupted(), Sandboxes(folder.resolve(), limits or Limits(), same_user, stop) as place:
        begin(place.words)
        pool = ThreadPoolExecutor(jobs)
        futures = {pool.submit(_grade_one, item, official[item.slug], place, judging): item for item in work}
        try:
            for future in _as_completed(futures, stop):
                item, result = futures[future], future.result()
                grades.waiting.discard((item.learner, item.slug))
                grades.notes[item.learner, item.slug] = result.notes
                for name, verdict in result.verdicts.items():
                    grades.verdicts[item.learner, item.slug, name] = verdict
                each(grades, item.learner, item.slug)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    return grades


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    try:
        yield
    except Interrupted:
        raise KeyboardInterrupt from None


def _as_completed(futures: Iterable[Future[Any]], stop: threading.Event) -> Iterator[Future[Any]]:
    """As concurrent.futures has it, and looks now and then whether to stop."""
    pending = set(futures)
    while pending:
        if stop.is_set():
            raise Interrupted
        done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
        yield from done


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
    program = sandbox.start("checks.grading.kernel", request, limits.notebook)
    titles = {exercise.name: exercise.title for exercise in lab.exercises}
    files: dict[str, str] = {}
    for said in program.lines(limits.notebook + _SLACK):
        name = str(said.get("exercise"))
        if name in titles and "file" in said:
            files[name] = str(said["file"])
        elif name in titles:
            result.note(f"{titles[name]}: nothing to check ({said.get('failed')}).")
        elif note := str(said.get("note", "")):
            result.note(note)
    memory, seconds = f"{limits.memory / (1 << 30):g} GB", f"{limits.notebook:.0f} s"
    if program.why == "memory":
        result.note(f"the notebook was stopped: it used more than {memory} of memory.")
    elif program.why == "time":
        result.note(f"the notebook was stopped after {seconds}.")
    elif program.status:
        result.note("the notebook ended the program that ran it; what follows was not run.")
    return files


def _judge(sandbox: Sandbox, lab: OfficialLab, files: dict[str, str], result: Result) -> None:
    """Ask for a verdict on each exercise; one that ends the judge is wrong, and the next has a new judge."""
    left = [exercise for exercise in lab.exercises if exercise.name in files]
    while left:
        secret = secrets.token_hex(16)
        request = {
            "checks": lab.checks.__name__,
            "answers": str(sandbox.folder / "answers"),
            "handed_in": [(exercise.name, files[exercise.name]) for exercise in left],
            "secret": secret,
        }
        program = sandbox.start("checks.grading.judge", request, _seconds(left))
        for said in program.lines(_seconds(left[:1])):
            if said.get("secret") == secret and said.get("exercise") == left[0].name:
                result.verdicts[left.pop(0).name] = _verdict(said)
            if not left:
                program.end()
                break
        if left:
            result.verdicts[left.pop(0).name] = Verdict(WRONG, f"the check was ended from inside: {_why(program)}.")


def _why(program: Any) -> str:
    return _HOW.get(program.why, "the answer stops or ends the process that judges it")


def _seconds(exercises: Sequence[Exercise]) -> float:
    return _SLACK + sum(exercise.timeout for exercise in exercises)


def _verdict(said: dict[str, Any]) -> Verdict:
    return Verdict(said["state"], said["text"], said["details"], tuple(said["passed"]))
