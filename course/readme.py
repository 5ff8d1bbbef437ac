"""The table of lectures in README.md, with the hours that they take and a short path through them.

Written from the notebooks, between two comments that mark its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from course.outline import Lecture, lectures

BEGIN = "<!-- table of lectures: written by `python -m course readme` -->"
END = "<!-- end of the table -->"
WEEKEND = (
    "start_here",
    "single_vs_multi_node",
    "parameter_server_and_all_reduce",
    "ddp_and_bucketing",
    "buckets_and_overlap",
    "feeding_the_ranks",
    "torchrun",
    "sharded_data_parallel",
)
"""The short path: how ranks talk, how they average gradients, how they start, and what is cut when a model is large."""


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
    """One row for each lecture; below it the hours of all, and the short path."""
    course = lectures(root)
    head = "| no. | lecture | lab | minutes (lecture + lab) | what it teaches |\n|---|---|---|--:|---|\n"
    path = [lecture for slug in WEEKEND for lecture in course if lecture.slug == slug]
    links = " → ".join(f"[{lecture.number:02d} · {lecture.title}](notebooks/{lecture.name}.ipynb)" for lecture in path)
    return (
        f"{head}{''.join(map(_row, course))}\n"
        f"That is {_hours(course)}.\n\n**For a weekend**: {links}: {_hours(path)}.\n"
    )


def _hours(course: Sequence[Lecture]) -> str:
    lectures, labs = (sum(getattr(one, key) for one in course) / 60 for key in ("minutes", "lab_minutes"))
    return f"{lectures:.0f} hours of lectures and {labs:.0f} hours of labs"


def _row(lecture: Lecture) -> str:
    name = f"{lecture.name}.ipynb"
    lab = f"[lab](labs/{name}), [solution](solutions/{name})" if lecture.lab else "–"
    teaches = lecture.teaches + (f" (needs `make {lecture.needs}`)" if lecture.needs else "")
    minutes = f"{lecture.minutes} + {lecture.lab_minutes}" if lecture.lab else str(lecture.minutes)
    title = f"[{lecture.title}](notebooks/{name})"
    return f"| {lecture.number:02d} | {title} | {lab} | {minutes} | {teaches} |\n"
