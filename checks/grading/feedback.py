"""A file for each learner: what every check said, in the checks' own sentences."""

from __future__ import annotations

from pathlib import Path

from checks.framework import Exercise
from checks.grading.table import LEGEND, Grades
from checks.points import counted
from checks.verdicts import NOT_JUDGED, RIGHT
from course import outline


def write_feedback(grades: Grades, learner: str, folder: Path) -> Path:
    """Write ``folder/<learner>.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{learner}.md"
    path.write_text(feedback(grades, learner), encoding="utf-8")
    return path


def feedback(grades: Grades, learner: str) -> str:
    """The text of one learner's file, in Markdown."""
    handed_in = {lab for who, lab in grades.notes if who == learner}
    labs = [lab for lab in grades.labs if lab in handed_in]
    points = [grades.points(learner, lab) for lab in labs]
    total = (
        f"**{sum(earned for earned, _ in points)} of {counted(sum(of for _, of in points))}** in what was handed in."
    )
    parts = [f"# {learner}", total, *(f"- {note}" for note in grades.notes.get((learner, ""), []))]
    for lab in labs:
        earned, of = grades.points(learner, lab)
        parts.append(f"## {outline.numbered(lab)}: {earned} of {counted(of)}")
        parts += [f"- {note}" for note in grades.notes[learner, lab]]
        parts += [_about(grades, learner, item) for item in grades.of(lab)]
    return "\n\n".join([*parts, "---", LEGEND.replace("\n", "   ")]) + "\n"


def _about(grades: Grades, learner: str, exercise: Exercise) -> str:
    verdict = grades.verdict(learner, exercise)
    state = grades.state(learner, exercise)
    points = "" if state == "not judged" else f" ({exercise.earned(verdict)} of {counted(exercise.points)})"
    lines = [f"### {grades.sign(learner, exercise)} {exercise.title}: {state}{points}"]
    if verdict is not None and verdict.text:
        lead = {RIGHT: "Measured: ", NOT_JUDGED: "Where this was graded: "}.get(state, "")
        lines.append(f"{lead}{verdict.text}")
    if verdict is not None and verdict.details:
        lines.append("\n".join(f"    {line}" for line in verdict.details.strip().splitlines()))
    return "\n\n".join(lines)
