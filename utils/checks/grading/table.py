"""The table of a grading: learner × exercise, for people and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.checks.verdicts import RIGHT, SIGNS, Verdict

NOT_THERE = "not there"
_SIGNS = {**SIGNS, NOT_THERE: "–"}


@dataclass
class Grades:
    """What a grading found.

    Args:
        exercises: the columns, lab by lab.
        verdicts: by (learner, lab, exercise); what is not in it was not handed in.
        notes: by (learner, lab), what went wrong with a notebook as a whole.
        learners: the rows.
    """

    exercises: Sequence[Any]
    learners: Sequence[str]
    verdicts: dict[tuple[str, str, str], Verdict] = field(default_factory=dict)
    notes: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def state(self, learner: str, exercise: Any) -> str:
        verdict = self.verdicts.get((learner, exercise.lab, exercise.name))
        return verdict.state if verdict is not None else NOT_THERE

    def done(self, learner: str, lab: str | None = None) -> tuple[int, int]:
        """How many exercises (of one lab, or of all) a learner has right, and of how many."""
        states = [self.state(learner, item) for item in self.exercises if lab in (None, item.lab)]
        return states.count(RIGHT), len(states)

    def text(self) -> str:
        """One block per lab, the totals, then a sentence for everything that is wrong."""
        labs = list(dict.fromkeys(item.lab for item in self.exercises))
        blocks = [self._block(lab) for lab in labs]
        if len(labs) > 1:
            blocks.append("\n".join(["total", *_columns(self._totals())]))
        blocks.append("✓ right   ✗ wrong   ○ not started   – not there")
        if remarks := list(self._remarks()):
            blocks.append("\n".join(remarks))
        return "\n\n".join(blocks)

    def write_csv(self, path: Path) -> None:
        """One row per learner: a state for each exercise, the totals, the notes."""
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            names = [f"{item.lab}/{item.name}" for item in self.exercises]
            writer.writerow(["learner", *names, "right", "of", "notes"])
            for learner in self.learners:
                states = [self.state(learner, item) for item in self.exercises]
                notes = [note for (who, _), found in self.notes.items() if who == learner for note in found]
                writer.writerow([learner, *states, *self.done(learner), " ".join(notes)])

    def _block(self, lab: str) -> str:
        exercises = [item for item in self.exercises if item.lab == lab]
        legend = [f"  {number}  {item.title}" for number, item in enumerate(exercises, start=1)]
        rows = [["learner", *(str(number) for number in range(1, len(exercises) + 1)), "right"]]
        for learner in self.learners:
            right, of = self.done(learner, lab)
            signs = [_SIGNS[self.state(learner, item)] for item in exercises]
            rows.append([learner, *signs, f"{right}/{of}"])
        counts = [str(sum(self.state(who, item) == RIGHT for who in self.learners)) for item in exercises]
        rows.append(["right", *counts, f"of {len(self.learners)}"])
        return "\n".join([lab, *legend, "", *_columns(rows)])

    def _totals(self) -> list[list[str]]:
        return [
            [learner, f"{right}/{of}"]
            for learner, (right, of) in ((learner, self.done(learner)) for learner in self.learners)
        ]

    def _remarks(self) -> Iterable[str]:
        for learner in self.learners:
            for (who, lab), notes in self.notes.items():
                if who == learner:
                    yield from (f"{learner}, {lab}: {note}" for note in notes)
            for item in self.exercises:
                verdict = self.verdicts.get((learner, item.lab, item.name))
                if verdict is not None and verdict.text and verdict.state != RIGHT:
                    yield f"{learner}, {item.lab}, {item.title}: ✗ {verdict.text}"


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
