"""The page on which `make lab` opens: the map of the course with what this learner has done, and where to go on.

``python -m checks.start_page START.md`` writes it anew. It is Markdown, which JupyterLab shows without a kernel.
What a learner has done is kept in memory.py's file, under slugs, so that an update of the course loses nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from checks.engine.verdicts import RIGHT
from checks.overview import Progress, progress
from course.map import course_map
from course.outline import FIRST, Lecture, lectures
from utils.ranks.world import hidden_module


def page(done: Progress | None = None) -> str:
    """The page's Markdown. ``done``: what to show; this learner's progress if not given."""
    done = progress() if done is None else done
    right = Counter(exercise.lab for exercise, state in done.rows if state == RIGHT)
    there = Counter(exercise.lab for exercise, _ in done.rows)
    counts = {lab: (right[lab], there[lab]) for lab in there}
    course = lectures()
    following = next((one for one in course if one.slug in counts and right[one.slug] < there[one.slug]), course[-1])
    first = next(one for one in course if one.slug == FIRST)
    lines = [
        "# Many GPUs: a course you run",
        "",
        f"**Begin:** {_link(first)}"
        if not right
        else f"**{done.summary}. Go on:** {_link(following)}, {_lab(following, counts)}",
        "",
        course_map(lambda one: f"notebooks/{one.name}.ipynb", course, counts),
        "",
        "| lecture | lab | what it teaches |",
        "|---|---|---|",
        *(f"| {_link(one)} | {_lab(one, counts)} | {one.teaches} |" for one in course),
        "",
        "`make lab` writes this page anew. In a notebook, `import checks; checks.progress()` lists all.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _link(lecture: Lecture) -> str:
    return f"[{lecture.number:02d} · {lecture.title}](notebooks/{lecture.name}.ipynb)"


def _lab(lecture: Lecture, counts: dict[str, tuple[int, int]]) -> str:
    if not lecture.lab:
        return "–"
    right, there = counts.get(lecture.slug, (0, 0))
    return f"[lab](labs/{lecture.name}.ipynb), {right} of {there} done"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8", newline="\n")
    for folder in ("notebooks", "labs"):  # a learner's own utils.py there would hide ours, which then cannot say so
        if note := hidden_module(Path(folder).resolve()):
            print(f"{folder}/: {note}", file=sys.stderr)
