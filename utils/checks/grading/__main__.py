"""``python -m utils.checks.grading DIR``: grade a folder of learners' labs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from utils.checks.grading.grade import grade, print_grades
from utils.course.build import LabError
from utils.course.outline import ROOT


def main(arguments: list[str] | None = None) -> int:
    """Grade.

    Returns:
        The exit status: 0 done, 2 it cannot be done (one sentence says why).
    """
    parser = argparse.ArgumentParser(prog="python -m utils.checks.grading", description=__doc__)
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR", help="with NN_slug.ipynb or <learner>/NN_slug.ipynb"
    )
    parser.add_argument("--labs", type=Path, default=ROOT / "labs", help="the official labs")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="where the table goes (DIR/grades.csv)")
    parser.add_argument("--cell-timeout", type=float, default=60, metavar="SECONDS", help="for a cell (60)")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="for a notebook (600)")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time (2)")
    given = parser.parse_args(arguments)
    try:
        if given.folder is None:
            raise LabError("Which folder holds the learners' labs? `make grade DIR=folder` grades it.")
        if given.folder.resolve() == given.labs.resolve():
            raise LabError(
                f"{given.folder} holds the labs themselves, which nobody has solved: name a learners' folder."
            )
        grades = grade(given.folder, given.labs, cell_timeout=given.cell_timeout, limit=given.limit, jobs=given.jobs)
        print_grades(grades, given.csv or given.folder / "grades.csv")
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
