"""Points as Canvas, Moodle and nbgrader take them.

Canvas and Moodle export a file, the roster: rows of it come back with a column for each lab. nbgrader's gradebook gets
the points through nbgrader itself. A learner is whom the folder's name means: any cell of a row of the roster, or first
and last name, also with what Moodle adds to a folder ("Ana Müller_1234_assignsubmission_file").

The forms are those of Canvas' lib/gradebook_importer.rb, Moodle's grade/import/csv and nbgrader.api of nbgrader 0.9.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

from checks.engine.verdicts import NOT_JUDGED
from checks.grade.table import NOT_REACHED, Grades
from course import outline
from course.build import LabError

EXPORTS = {"canvas": "Grades → Export", "moodle": "Grades → Export → Plain text file"}
_MOODLE_ADDS = re.compile(r"_\d+_assignsubmission.*$")
_OPEN = {NOT_JUDGED, NOT_REACHED}


def writer(system: str, roster: Path | None, folder: Path) -> Callable[[Grades, Path], list[str]]:
    """What writes points for a system into a folder, and returns sentences to print.

    Raises:
        LabError: now, and not after an hour of grading, if the roster is not what the system exports.
    """
    if system == "nbgrader":
        return _nbgrader(roster or folder / "gradebook.db")
    if roster is None:
        raise LabError(
            f"{system.capitalize()} wants rows of its own: export them ({EXPORTS[system]}), add --roster FILE."
        )
    try:
        text = roster.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise LabError(f"The roster {roster} cannot be read: {why}.") from None
    separator = max(",;\t", key=text.partition("\n")[0].count)
    header, *rows = list(csv.reader(io.StringIO(text), delimiter=separator)) or [[]]
    rows = [(row + [""] * len(header))[: len(header)] for row in rows if any(row)]
    if system == "canvas":
        if not {"ID", "Section"} <= set(header):
            raise LabError(f"{roster} is not what Canvas exports: its first line has Student, ID and Section.")
        kept = header.index("Section") + 1
    else:  # its headings are in the teacher's language; addresses are the last column that says who it is
        kept = 1 + max((i for row in rows for i, cell in enumerate(row) if "@" in cell), default=len(header) - 1)
    people = _people(rows, kept)

    def write(grades: Grades, out: Path) -> list[str]:
        said, most = [], {lab: sum(one.points for one in grades.of(lab)) for lab in grades.labs}
        columns = [next((i for i, name in enumerate(header) if _is_of(lab, name)), -1) for lab in most]
        table = [
            [
                *header[:kept],
                *(header[i] if i >= kept else outline.numbered(lab) for lab, i in zip(most, columns, strict=True)),
            ]
        ]
        possible = [100.0] * len(most)  # in Moodle, unless somebody has chosen otherwise
        if system == "canvas":
            row = next((row for row in rows if row[0].strip() == "Points Possible"), [""] * len(header))
            possible = [_number(row[i]) if i >= kept else most[lab] for lab, i in zip(most, columns, strict=True)]
            table.append([row[0] or "Points Possible", *row[1:kept], *(f"{one:g}" for one in possible)])
        for learner in grades.learners:
            if (who := people.get(plain(_MOODLE_ADDS.sub("", learner)))) is None:
                said.append(f"{learner}: no row of {roster.name} is theirs alone, so {system}.csv has none.")
                continue
            cells = [who[i] if i >= kept else "" for i in columns]
            for place, lab in enumerate(most):
                if {grades.state(learner, one) for one in grades.of(lab)} & _OPEN:
                    said.append(f"{learner}: {outline.numbered(lab)} was not judged as a whole, so it has no points.")
                elif (learner, lab) in grades.notes:
                    cells[place] = f"{grades.points(learner, lab)[0] * possible[place] / most[lab]:.2f}"
            if any((learner, lab) in grades.notes for lab in most):
                table.append([*who[:kept], *cells])
        with (out / f"{system}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=separator).writerows(table)
        return [*said, f"{out / system}.csv is to be imported there."]

    return write


def plain(name: str) -> str:
    """A name as it is compared: small letters, and spaces for all that is no letter, digit or @."""
    return re.sub(r"[^\w@]+|_", " ", unicodedata.normalize("NFC", name).casefold()).strip()


def _people(rows: list[list[str]], kept: int) -> dict[str, list[str]]:
    """A row by everything that its person may be called, but for what several share."""
    found: dict[str, list[list[str]]] = {}
    for row in rows:
        names = {*row[:kept], " ".join(row[:2]), " ".join(row[1::-1]), " ".join(reversed(row[0].split(",")))}
        for name in {plain(one) for one in names} - {""}:
            found.setdefault(name, []).append(row)
    return {name: of[0] for name, of in found.items() if len(of) == 1}


def _is_of(lab: str, name: str) -> bool:
    """Whether an assignment is a lab: "42 · Toy (1234)", "Lab 42: Toy", or by its slug."""
    bare = re.sub(r"^(lab )?(\d+ )?", "", plain(re.sub(r"\(\d+\)\s*$", "", name)))
    return bare in {plain(lab), *(plain(one.title) for one in outline.lectures() if one.slug == lab)}


def _number(text: str) -> float:
    return float(text.replace(",", ".")) if re.fullmatch(r"\d+([.,]\d+)?", text.strip()) else 0.0


def _nbgrader(database: Path) -> Callable[[Grades, Path], list[str]]:
    if not database.is_file():
        raise LabError(f"nbgrader's gradebook {database} is not there: name it with --roster FILE.")
    try:
        from nbgrader.api import Grade, Gradebook, MissingEntry, SubmittedNotebook
    except ImportError:
        raise LabError("nbgrader is not installed beside the course: .venv/bin/pip install nbgrader") from None

    def write(grades: Grades, out: Path) -> list[str]:
        with Gradebook(f"sqlite:///{database.resolve()}") as book:
            for lab in grades.labs:
                page = outline.numbered(lab)
                name = next((one.name for one in book.assignments if _is_of(lab, one.name)), page)
                book.update_or_create_assignment(name)
                notebook = book.update_or_create_notebook(page, name)
                for one in grades.of(lab):
                    book.update_or_create_grade_cell(one.name, page, name, max_score=one.points, cell_type="code")
                for learner in [one for one in grades.learners if (one, lab) in grades.notes]:
                    book.update_or_create_student(learner)
                    handed_in = book.update_or_create_submission(name, learner)
                    try:
                        own = book.find_submission_notebook(page, name, learner)
                    except MissingEntry:
                        own = SubmittedNotebook(notebook=notebook, assignment=handed_in)
                        book.db.add(own)
                    there = {grade.name: grade for grade in own.grades}
                    for one in grades.of(lab):
                        cell = book.find_grade_cell(one.name, page, name)
                        grade = there.get(one.name) or Grade(cell=cell, notebook=own)
                        grade.needs_manual_grade = grades.state(learner, one) in _OPEN
                        judged = not grade.needs_manual_grade
                        grade.auto_score = one.earned(grades.verdict(learner, one)) if judged else None
                        book.db.add(grade)
                book.db.commit()
        return [f"{database} has the points: formgrader shows them, `nbgrader export` writes them."]

    return write
