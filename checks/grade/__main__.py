"""Grade a folder of learners' labs. Results come as they are found, and are kept after an interrupt."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from checks.grade import gradebooks
from checks.grade.grading import grade
from checks.grade.handed_in import FEEDBACK
from checks.grade.sandbox import Limits
from checks.grade.table import Grades
from checks.grade.walls import hide_memory
from course.build import LabError
from course.outline import ROOT, numbered, slugs

TABLE = "grades.csv"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # (of both, what is done is kept)


def main(arguments: list[str] | None = None, stop: threading.Event | None = None) -> int:
    """Grade, until all is graded or ``stop`` is set.

    Returns:
        The exit status: 0 done, 2 it cannot be done (one sentence says why), 130 interrupted.
    """
    given = _parser().parse_args(arguments)
    try:
        if given.folder is None:
            raise LabError("Which folder holds the learners' labs? `make grade DIR=folder` grades it.")
        if given.folder.resolve() == given.labs.resolve():
            raise LabError(f"{given.folder} holds the labs themselves, not a learner's: name a learners' folder.")
        return _grade(given, given.out or given.folder, stop or threading.Event())
    except LabError as error:
        print(error, file=sys.stderr)
        return 2


def _grade(given: argparse.Namespace, out: Path, stop: threading.Event) -> int:
    only = dict(map(_counting, given.count))
    export = gradebooks.writer(given.system, given.roster, given.folder) if given.system else None

    def write(grades: Grades, learners: Sequence[str]) -> None:
        with _writing(out):
            for learner in learners:
                grades.write_feedback(learner, out / FEEDBACK)
            grades.write_csv(out / TABLE)

    def each(grades: Grades, learner: str, lab: str) -> None:
        write(grades, [learner])
        done = sum(bool(lab) for _, lab in grades.notes)
        print(f"{done} of {done + len(grades.waiting)}  {grades.line(learner, lab)}", flush=True)

    grades = grade(
        given.folder,
        given.labs,
        limits=Limits(given.cell_timeout, given.limit, int(given.memory * (1 << 30))),
        jobs=math.ceil(given.jobs),
        same_user=given.same_user,
        only=only,
        begin=lambda words: print(words, file=sys.stderr, flush=True),
        each=each,
        stop=stop,
    )
    if grades.waiting:
        begun = any(lab for _, lab in grades.notes)
        print("\nInterrupted" + ("." if begun else " before the first notebook was graded."), file=sys.stderr)
        if not begun:
            return 130
    write(grades, grades.learners)
    print(f"\n{grades.text()}\n\n{out / TABLE} is the table, with every check's sentence,")
    print(f"and {out / FEEDBACK}/ has a file for each learner.")
    if export:
        with _writing(out):
            print(*export(grades, out), sep="\n")
    if grades.waiting:
        print(f"{len(grades.waiting)} notebooks were not graded any more.")
    return 130 if grades.waiting else 0


@contextlib.contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LabError(f"{error.filename or out} cannot be written: {error.strerror}.") from None


def _counting(text: str) -> tuple[str, set[int]]:
    lab, _, numbers = text.partition(":")
    slug = next((one for one in slugs("solutions") if lab in (one, numbered(one), numbered(one)[:2])), None)
    if slug is None or not re.fullmatch(r"\d+(,\d+)*", numbers):
        raise LabError(f"--count takes a lab and its exercises, such as ddp_and_bucketing:1,2, not {text!r}.")
    return slug, {int(one) for one in numbers.split(",")}


def _positive(text: str) -> float:
    if (number := float(text)) > 0:
        return number
    raise ValueError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make grade DIR=folder ARGS=…", description=__doc__)
    folders = "NN_slug.ipynb, <learner>/NN_slug.ipynb, or nbgrader's course"
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR", help=folders)
    parser.add_argument("--labs", type=Path, default=ROOT / "labs", help="the official labs")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"where {TABLE} and {FEEDBACK}/ go (DIR)")
    count = "only these exercises of a lab count; again for each lab"
    parser.add_argument("--count", action="append", default=[], metavar="LAB:1,2", help=count)
    systems = ("canvas", "moodle", "nbgrader")
    parser.add_argument("--for", dest="system", choices=systems, help="also write points as this takes them")
    parser.add_argument("--roster", type=Path, metavar="FILE", help="what it has exported; of nbgrader: gradebook.db")
    parser.add_argument("--cell-timeout", type=_positive, default=60, metavar="SECONDS", help="for a cell (60)")
    parser.add_argument("--limit", type=_positive, default=600, metavar="SECONDS", help="for a notebook (600)")
    parser.add_argument("--memory", type=_positive, default=4, metavar="GB", help="for a notebook, and for a check (4)")
    parser.add_argument("--jobs", type=_positive, default=2, help="notebooks at a time (2)")
    parser.add_argument("--same-user", action="store_true", help="as root: do not change to another user")
    return parser


if __name__ == "__main__":
    hide_memory()
    interrupted = threading.Event()

    def note(*_: object) -> None:
        """Ctrl-C is noted, not raised: raised in the middle of a wait, it would leave a lock taken for ever."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        interrupted.set()

    for number in _SIGNALS:
        signal.signal(number, note)
    sys.exit(main(stop=interrupted))
