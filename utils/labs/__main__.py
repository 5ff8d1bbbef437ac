"""``python -m utils.labs``: build the labs, or grade a folder of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from utils.labs.build import LabError, build, differences

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 done, 1 labs differ, 2 it cannot be done (one sentence says why).
    """
    parser = argparse.ArgumentParser(prog="python -m utils.labs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    builder = commands.add_parser("build", help="make labs/ from solutions/")
    builder.add_argument("--check", action="store_true", help="change nothing; fail if labs/ is out of date")
    builder.add_argument("--solutions", type=Path, default=ROOT / "solutions")

    grader = commands.add_parser("grade", help="grade DIR/NN_slug.ipynb or DIR/<learner>/NN_slug.ipynb")
    grader.add_argument("folder", type=Path, metavar="DIR")
    grader.add_argument("--csv", type=Path, metavar="FILE", help="where the table goes (DIR/grades.csv)")
    grader.add_argument("--cell-timeout", type=float, default=60, metavar="SECONDS", help="for a cell (60)")
    grader.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="for a notebook (600)")
    grader.add_argument("--jobs", type=int, default=2, help="notebooks at a time (2)")

    for command in (builder, grader):
        command.add_argument("--labs", type=Path, default=ROOT / "labs", help="the official labs")
    options = parser.parse_args(arguments)
    try:
        return _build(options) if options.command == "build" else _grade(options)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2


def _build(options: argparse.Namespace) -> int:
    if options.check:
        different = differences(options.solutions, options.labs)
        for path in different:
            print(f"{_short(path)} is not what {_short(options.solutions)}/ gives: run `make labs`.")
        return 1 if different else 0
    for path in build(options.solutions, options.labs):
        print(f"{'wrote' if path.exists() else 'removed'} {_short(path)}")
    return 0


def _grade(options: argparse.Namespace) -> int:
    from utils.labs.grade import grade, print_grades

    grades = grade(
        options.folder,
        options.labs,
        cell_timeout=options.cell_timeout,
        limit=options.limit,
        jobs=options.jobs,
    )
    print_grades(grades, options.csv or options.folder / "grades.csv")
    return 0


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())
