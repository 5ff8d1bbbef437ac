"""What a grading found: learner × exercise, for people and as CSV."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checks.engine.exercises import Exercise
from checks.engine.verdicts import NOT_JUDGED, RIGHT, SIGNS, Verdict
from checks.points import counted
from course import outline
from utils.ranks.output import text_table

NOT_THERE, NOT_REACHED = "not there", "not graded"
_SIGNS = {**SIGNS, NOT_THERE: "–", NOT_REACHED: "…"}
LEGEND = (
    "✓ right   ✗ wrong   ○ not started   – not there (not handed in, or its cell did not run)\n"
    "? not judged (something that the check needs is not installed; counts neither as right nor as wrong)"
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute what begins with these


@dataclass
class Grades:
    """What a grading found.

    Args:
        exercises: the columns, lab by lab.
        learners: the rows.
        verdicts: by (learner, lab, exercise); what is not in it was not handed in.
        notes: by (learner, lab), what is to be said of a notebook as a whole; the lab "" is all of a learner's files.
        waiting: notebooks that are handed in and not yet graded.
    """

    exercises: Sequence[Exercise]
    learners: Sequence[str]
    verdicts: dict[tuple[str, str, str], Verdict] = field(default_factory=dict)
    notes: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    waiting: set[tuple[str, str]] = field(default_factory=set)

    @property
    def labs(self) -> list[str]:
        return list(dict.fromkeys(item.lab for item in self.exercises))

    def of(self, lab: str | None) -> list[Exercise]:
        """The exercises of one lab, or of all."""
        return [item for item in self.exercises if lab in (None, item.lab)]

    def verdict(self, learner: str, exercise: Exercise) -> Verdict | None:
        return self.verdicts.get((learner, exercise.lab, exercise.name))

    def state(self, learner: str, exercise: Exercise) -> str:
        if (verdict := self.verdict(learner, exercise)) is not None:
            return verdict.state
        return NOT_REACHED if (learner, exercise.lab) in self.waiting else NOT_THERE

    def sign(self, learner: str, exercise: Exercise) -> str:
        return _SIGNS[self.state(learner, exercise)]

    def sentence(self, learner: str, exercise: Exercise) -> str:
        """What the check said."""
        verdict = self.verdict(learner, exercise)
        return verdict.text if verdict is not None else ""

    def points(self, learner: str, lab: str | None = None) -> tuple[int, int]:
        """How many points a learner has (in one lab, or in all), and of how many. What was not judged is in neither."""
        judged = [item for item in self.of(lab) if self.state(learner, item) not in ("not judged", NOT_REACHED)]
        earned = (item.earned(self.verdict(learner, item)) for item in judged)
        return sum(earned), sum(item.points for item in judged)

    def notes_of(self, learner: str) -> list[str]:
        """Sentences about a learner's notebooks, each with its lab."""
        return [
            f"{outline.numbered(lab)}: {note}" if lab else note
            for (who, lab), notes in self.notes.items()
            for note in notes
            if who == learner
        ]

    def line(self, learner: str, lab: str) -> str:
        """One learner's result in one lab, as it is shown when it comes."""
        signs = " ".join(self.sign(learner, item) for item in self.of(lab))
        return f"{learner}, {outline.numbered(lab)}: {signs}   {_of(self.points(learner, lab))}"

    def text(self) -> str:
        """A block for each lab, the totals, the legend, then the notes."""
        blocks = [self._block(lab) for lab in self.labs]
        if len(blocks) > 1:
            totals = [[who, _of(self.points(who))] for who in self.learners]
            blocks.append("\n".join(text_table([["all labs", "points"], *totals])))
        blocks.append(LEGEND + ("\n… not graded any more" if self.waiting else ""))
        if notes := [f"{who}: {note}" for who in self.learners for note in self.notes_of(who)]:
            blocks.append("\n".join(notes))
        return "\n\n".join(blocks)

    def feedback(self, learner: str) -> str:
        """The text of one learner's file, in Markdown: what every check said, in the checks' own sentences."""
        labs = [lab for lab in self.labs if (learner, lab) in self.notes]
        points = [self.points(learner, lab) for lab in labs]
        earned, of = (sum(numbers) for numbers in zip((0, 0), *points, strict=True))
        parts = [f"# {learner}", f"**{earned} of {counted(of)}** in what was handed in."]
        parts += [f"- {note}" for note in self.notes.get((learner, ""), [])]
        for lab in labs:
            earned, of = self.points(learner, lab)
            parts.append(f"## {outline.numbered(lab)}: {earned} of {counted(of)}")
            parts += [f"- {note}" for note in self.notes[learner, lab]]
            for item in self.of(lab):
                verdict, state = self.verdict(learner, item), self.state(learner, item)
                worth = "" if state == "not judged" else f" ({item.earned(verdict)} of {counted(item.points)})"
                parts.append(f"### {self.sign(learner, item)} {item.title}: {state}{worth}")
                if verdict is not None and verdict.text:
                    lead = {RIGHT: "Measured: ", NOT_JUDGED: "Where this was graded: "}.get(state, "")
                    parts.append(f"{lead}{verdict.text}")
                if verdict is not None and verdict.details:
                    parts.append("\n".join(f"    {line}" for line in verdict.details.strip().splitlines()))
        return "\n\n".join([*parts, "---", LEGEND.replace("\n", "   ")]) + "\n"

    def write_feedback(self, learner: str, folder: Path) -> None:
        """Write ``folder/<learner>.md``."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{learner}.md").write_text(self.feedback(learner), encoding="utf-8")

    def write_csv(self, path: Path) -> None:
        """One row per learner: points, a state, points and the check's sentence for each exercise, the notes."""
        about = ("", " points", " sentence")
        columns = [f"{item.lab}/{item.name}{what}" for item in self.exercises for what in about]
        rows = [["learner", "points", "of", "right", *columns, "notes"]]
        for learner in self.learners:
            states = [self.state(learner, item) for item in self.exercises]
            row = [learner, *map(str, self.points(learner)), str(states.count(RIGHT))]
            for item, state in zip(self.exercises, states, strict=True):
                row += [state, str(item.earned(self.verdict(learner, item))), self.sentence(learner, item)]
            rows.append([*row, " ".join(self.notes_of(learner))])
        written = path.with_name(f"{path.name}.new")  # whoever reads never sees half of it
        with written.open("w", encoding="utf-8-sig", newline="") as file:  # (Excel asks for the signature)
            csv.writer(file).writerows([[_harmless(cell) for cell in row] for row in rows])
        os.replace(written, path)

    def _block(self, lab: str) -> str:
        exercises = self.of(lab)
        legend = [f"  {number}  {item.title} ({item.points})" for number, item in enumerate(exercises, start=1)]
        rows = [["learner", *(str(number) for number in range(1, len(exercises) + 1)), "points"]]
        for learner in self.learners:
            rows.append([learner, *(self.sign(learner, item) for item in exercises), _of(self.points(learner, lab))])
        counts = [str(sum(self.state(who, item) == RIGHT for who in self.learners)) for item in exercises]
        rows.append(["right", *counts, f"of {len(self.learners)} learners"])
        return "\n".join([f"{outline.numbered(lab)} (points)", *legend, "", *text_table(rows)])


def _of(points: tuple[int, int]) -> str:
    return f"{points[0]} of {points[1]}"


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
