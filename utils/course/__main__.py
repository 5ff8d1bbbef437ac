"""``python -m utils.course``: make the labs, execute notebooks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from utils.course.build import LabError, build, differences
from utils.course.outline import ROOT


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 done, 1 labs differ or a notebook failed, 2 it cannot be done (one sentence says why).
    """
    parser = argparse.ArgumentParser(prog="python -m utils.course", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    builder = commands.add_parser("labs", help="make labs/ from solutions/")
    builder.add_argument("--check", action="store_true", help="change nothing; fail if labs/ is out of date")
    builder.add_argument("--solutions", type=Path, default=ROOT / "solutions")
    builder.add_argument("--labs", type=Path, default=ROOT / "labs")

    runner = commands.add_parser("execute", help="run notebooks and store their outputs")
    runner.add_argument("files", nargs="+", type=Path, metavar="FILE")
    runner.add_argument("--timeout", type=int, help="seconds that one cell may take")

    options = parser.parse_args(arguments)
    try:
        return {"labs": _labs, "execute": _execute}[options.command](options)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2


def _labs(options: argparse.Namespace) -> int:
    if options.check:
        different = differences(options.solutions, options.labs)
        for path in different:
            print(f"{_short(path)} is not what {_short(options.solutions)}/ gives: run `make labs`.")
        return 1 if different else 0
    for path in build(options.solutions, options.labs):
        print(f"{'wrote' if path.exists() else 'removed'} {_short(path)}")
    return 0


def _execute(options: argparse.Namespace) -> int:
    from utils.course.notebooks import CELL_TIMEOUT, ExecutionFailed, execute

    for path in options.files:
        try:
            execute(path, options.timeout or CELL_TIMEOUT)
        except ExecutionFailed as error:
            print(error, file=sys.stderr)
            return 1
        except OSError as error:
            print(f"{path} cannot be read or written: {error.strerror}.", file=sys.stderr)
            return 1
        print(f"executed and stored {path}")
    return 0


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())
