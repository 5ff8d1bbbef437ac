"""``progress()``: every lab with its exercises, and which of them are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from checks.engine.exercises import Exercise, all_exercises, lab_modules
from checks.engine.verdicts import NOT_STARTED, RIGHT, SIGNS
from checks.memory import recall
from course import outline


@dataclass(frozen=True)
class Progress:
    """The overview.

    Args:
        rows: every exercise with its state, lab by lab.
        problems: a sentence for each module of checks that cannot be imported.
    """

    rows: Sequence[tuple[Exercise, str]]
    problems: Sequence[str] = ()

    @property
    def done(self) -> int:
        return sum(state == RIGHT for _, state in self.rows)

    @property
    def summary(self) -> str:
        minutes = sum(exercise.minutes for exercise, state in self.rows if state != RIGHT)
        left = f", about {minutes} minutes to go" if minutes else ""
        return f"{self.done} of {len(self.rows)} exercises done{left}"

    def __repr__(self) -> str:
        lines = []
        width = max((len(exercise.title) for exercise, _ in self.rows), default=0)
        for lab, rows in self._labs():
            lines.append(f"{lab}  {_count(rows)}")
            for exercise, state in rows:
                facts = f"{exercise.stars}  {exercise.minutes:>3} min"
                lines.append(f"  {SIGNS[state]} {exercise.title:<{width}}  {facts}")
        return "\n".join([*lines, *self.problems, self.summary])

    def _labs(self) -> list[tuple[str, list[tuple[Exercise, str]]]]:
        return [(outline.numbered(lab), list(rows)) for lab, rows in groupby(self.rows, key=lambda row: row[0].lab)]


def progress(exercises: Sequence[Exercise] | None = None) -> Progress:
    """Show every lab's exercises with ○ not started, ✗ wrong or ✓ right, and how many are done.

    Args:
        exercises: which ones; all of the course if not given.
    """
    results = recall()
    problems: list[str] = []
    if exercises is None:
        exercises = all_exercises()
        problems = lab_modules()[1]
    rows = [(item, results.get(f"{item.lab}/{item.name}", NOT_STARTED)) for item in exercises]
    return Progress(rows, problems)


def _count(rows: Sequence[tuple[Exercise, str]]) -> str:
    return f"{sum(state == RIGHT for _, state in rows)}/{len(rows)}"
