"""The table of lectures in README.md, written from the notebooks, between two comments that mark its place."""

from __future__ import annotations

from pathlib import Path

from course.outline import Lecture, lectures

BEGIN = "<!-- table of lectures: written by `python -m course readme` -->"
END = "<!-- end of the table -->"


def with_table(text: str, root: Path | None = None) -> str:
    """The README's text with the table that the notebooks give.

    Raises:
        ValueError: if the marks are not there, each once and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"README.md does not mark the table's place with {BEGIN} and {END}.")
    return f"{before}{begin}\n{table(root)}{end}{after}"


def write(root: Path) -> None:
    """Put the table into the README, where ``with_table`` puts it."""
    page = root / "README.md"
    page.write_text(with_table(page.read_text(encoding="utf-8"), root), encoding="utf-8", newline="\n")


def table(root: Path | None = None) -> str:
    """One row for each lecture."""
    head = "| no. | lecture | lab | what it teaches |\n|---|---|---|---|\n"
    return head + "".join(map(_row, lectures(root)))


def _row(lecture: Lecture) -> str:
    name = f"{lecture.name}.ipynb"
    lab = f"[lab](labs/{name}), [solution](solutions/{name})" if lecture.lab else "–"
    teaches = lecture.teaches + (f" (needs `make {lecture.needs}`)" if lecture.needs else "")
    return f"| {lecture.number:02d} | [{lecture.title}](notebooks/{name}) | {lab} | {teaches} |\n"
