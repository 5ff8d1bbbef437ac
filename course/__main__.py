"""Which notebooks there are, labs from solutions, executed notebooks: what authors do to the course as a whole."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from course import anywhere, outline, readme
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
        said = options.run(options)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    if isinstance(said, int):
        return said
    print(*said, sep="\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m course", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int | Sequence[str]], help: str) -> Any:
        one = commands.add_parser(name, help=help)
        one.set_defaults(run=run)
        return one

    builder = command("labs", _labs, "make labs/ from solutions/")
    builder.add_argument("--check", action="store_true", help="change nothing; fail if labs/ is out of date")
    builder.add_argument("--solutions", type=Path, default=ROOT / "solutions")
    builder.add_argument("--labs", type=Path, default=ROOT / "labs")
    runner = command("execute", _execute, "run notebooks and store their outputs")
    runner.add_argument("files", nargs="+", type=Path, metavar="FILE")
    runner.add_argument("--timeout", type=int, help="seconds that one cell may take")
    table = command("readme", _readme, "write the table of lectures in README.md")
    table.add_argument("--check", action="store_true", help="change nothing; fail if the table is out of date")
    needs = command("needs", _needs, "file names of the lectures that need an extra, for make")
    needs.add_argument("extra", help="frameworks")
    insert = command("insert", _insert, "make a new lecture; those behind it move up")
    insert.add_argument("slug")
    insert.add_argument("--at", type=int, required=True, metavar="N", help="its number")
    move = command("move", _move, "give a lecture another number")
    move.add_argument("slug")
    move.add_argument("--to", type=int, required=True, metavar="N", help="its number afterwards")
    split = command("split", _split, "make a new lecture directly behind another, for a part of it")
    split.add_argument("slug")
    split.add_argument("new_slug")
    for new in (insert, split):
        new.add_argument("--title", default="", help="its heading; made from the slug if not given")
        new.add_argument("--lab", action="store_true", help="with a solution, and so with a lab")
    lab = command("lab", _new_lab, "make a lab with one exercise, its check and its answers, for a lecture")
    lab.add_argument("slug")
    anywhere = command("anywhere", _anywhere, "write the notebooks with a cell in front that fetches the course")
    anywhere.add_argument("folder", type=Path)
    anywhere.add_argument("address", help="of the repository: https://github.com/OWNER/NAME")
    getter = command("get", _get, "put the notebooks, labs, … that pip has installed into a folder")
    getter.add_argument("folder", type=Path)
    for one in (table, needs, insert, move, split, lab):
        one.add_argument("--root", type=Path, default=ROOT, help="the repository")
    return parser


# What imports more than Python's own is imported where it is needed: `make` asks before the environment exists.


def _labs(options: argparse.Namespace) -> int:
    if options.check:
        different = differences(options.solutions, options.labs)
        for path in different:
            print(f"{_short(path)} is not what {_short(options.solutions)}/ gives: run `make labs`.")
        return int(bool(different))
    for path in build(options.solutions, options.labs):
        print(f"{'wrote' if path.exists() else 'removed'} {_short(path)}")
    return 0


def _execute(options: argparse.Namespace) -> int:
    from course.notebooks import CELL_TIMEOUT, ExecutionFailed, execute

    for path in options.files:
        try:
            execute(path, options.timeout or CELL_TIMEOUT)
        except (ExecutionFailed, OSError) as error:
            why = f"{path} cannot be read or written: {error.strerror}." if isinstance(error, OSError) else error
            print(why, file=sys.stderr)
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
    if not options.check:
        page.write_text(new, encoding="utf-8", newline="\n")
    elif new != old:
        print("README.md's table is not what the notebooks give: run `python -m course readme`.")
        return 1
    return 0


def _needs(options: argparse.Namespace) -> list[str]:
    return [" ".join(f"{one.name}.ipynb" for one in outline.lectures(options.root) if one.needs == options.extra)]


def _insert(options: argparse.Namespace) -> list[str]:
    from course import renumber

    return renumber.insert(options.slug, options.at, options.title, options.lab, options.root)


def _move(options: argparse.Namespace) -> list[str]:
    from course import renumber

    return renumber.move(options.slug, options.to, options.root)


def _split(options: argparse.Namespace) -> list[str]:
    from course import renumber

    return renumber.split(options.slug, options.new_slug, options.title, options.lab, options.root)


def _new_lab(options: argparse.Namespace) -> list[str]:
    from course import new

    return new.lab(options.slug, options.root)


def _anywhere(options: argparse.Namespace) -> list[str]:
    written = anywhere.write(options.folder, options.address)
    return [f"wrote {len(written)} notebooks into {_short(options.folder)}"]


def _get(options: argparse.Namespace) -> list[str]:
    return [anywhere.get(options.folder)]


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())
