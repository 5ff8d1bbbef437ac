"""Which notebooks there are, labs from solutions, executed notebooks: what authors do to the course as a whole."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from course import outline, readme
from course.build import LabError, build, differences
from course.outline import ROOT


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 done, 1 something is out of date or a notebook failed, 2 it cannot be done (one sentence says
        why).
    """
    options = _parser().parse_args(arguments)
    try:
        return _COMMANDS[options.command](options)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m course", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    builder = commands.add_parser("labs", help="make labs/ from solutions/")
    builder.add_argument("--check", action="store_true", help="change nothing; fail if labs/ is out of date")
    builder.add_argument("--solutions", type=Path, default=ROOT / "solutions")
    builder.add_argument("--labs", type=Path, default=ROOT / "labs")

    runner = commands.add_parser("execute", help="run notebooks and store their outputs")
    runner.add_argument("files", nargs="+", type=Path, metavar="FILE")
    runner.add_argument("--timeout", type=int, help="seconds that one cell may take")

    table = commands.add_parser("readme", help="write the table of lectures in README.md")
    table.add_argument("--check", action="store_true", help="change nothing; fail if the table is out of date")

    needs = commands.add_parser("needs", help="file names of the lectures that need an extra, for make")
    needs.add_argument("extra", help="frameworks")

    insert = commands.add_parser("insert", help="make a new lecture; those behind it move up")
    insert.add_argument("slug")
    insert.add_argument("--at", type=int, required=True, metavar="N", help="its number")
    move = commands.add_parser("move", help="give a lecture another number")
    move.add_argument("slug")
    move.add_argument("--to", type=int, required=True, metavar="N", help="its number afterwards")
    split = commands.add_parser("split", help="make a new lecture directly behind another, for a part of it")
    split.add_argument("slug")
    split.add_argument("new_slug")
    for new in (insert, split):
        new.add_argument("--title", default="", help="its heading; made from the slug if not given")
        new.add_argument("--lab", action="store_true", help="with a solution, and so with a lab")
    lab = commands.add_parser("lab", help="make a lab with one exercise, its check and its answers, for a lecture")
    lab.add_argument("slug")
    anywhere = commands.add_parser("anywhere", help="write the notebooks with a cell in front that fetches the course")
    anywhere.add_argument("folder", type=Path)
    anywhere.add_argument("address", help="of the repository: https://github.com/OWNER/NAME")
    getter = commands.add_parser("get", help="put the notebooks, labs, … that pip has installed into a folder")
    getter.add_argument("folder", type=Path)
    for one in (table, needs, insert, move, split, lab):
        one.add_argument("--root", type=Path, default=ROOT, help="the repository")
    return parser


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
    from course.notebooks import CELL_TIMEOUT, ExecutionFailed, execute

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


def _readme(options: argparse.Namespace) -> int:
    page = options.root / "README.md"
    old = page.read_text(encoding="utf-8")
    try:
        new = readme.with_table(old, options.root)
    except ValueError as error:
        raise LabError(str(error)) from None
    if options.check:
        if new != old:
            print("README.md's table is not what the notebooks give: run `python -m course readme`.")
        return int(new != old)
    page.write_text(new, encoding="utf-8", newline="\n")
    return 0


def _needs(options: argparse.Namespace) -> int:
    print(*(f"{one.name}.ipynb" for one in outline.lectures(options.root) if one.needs == options.extra))
    return 0


def _renumber(options: argparse.Namespace) -> int:
    from course import renumber

    if options.command == "insert":
        lines = renumber.insert(options.slug, options.at, options.title, options.lab, options.root)
    elif options.command == "move":
        lines = renumber.move(options.slug, options.to, options.root)
    else:
        lines = renumber.split(options.slug, options.new_slug, options.title, options.lab, options.root)
    print(*lines, sep="\n")
    return 0


def _new_lab(options: argparse.Namespace) -> int:
    from course import new

    print(*new.lab(options.slug, options.root), sep="\n")
    return 0


def _anywhere(options: argparse.Namespace) -> int:
    from course import anywhere

    print(f"wrote {len(anywhere.write(options.folder, options.address))} notebooks into {_short(options.folder)}")
    return 0


def _get(options: argparse.Namespace) -> int:
    from course import anywhere

    print(anywhere.get(options.folder))
    return 0


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


_COMMANDS = {
    "labs": _labs,
    "execute": _execute,
    "readme": _readme,
    "needs": _needs,
    "insert": _renumber,
    "move": _renumber,
    "split": _renumber,
    "lab": _new_lab,
    "anywhere": _anywhere,
    "get": _get,
}

if __name__ == "__main__":
    sys.exit(main())
