"""Points for Canvas, Moodle and nbgrader: rows of their own exports come back with the labs' points."""

from __future__ import annotations

import csv
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
from class_support import found_by_kernels, hand_in, official, words
from toy_word_checks import RIGHT as ANSWER

import checks.labs.ddp_and_bucketing as ddp
from checks.engine.exercises import Exercise, exercises_in
from checks.engine.verdicts import NOT_JUDGED, RIGHT, WRONG, Verdict
from checks.grade.__main__ import main
from checks.grade.gradebooks import writer
from checks.grade.grading import grade
from checks.grade.table import Grades
from course import outline
from course.build import LabError

LAB = "ddp_and_bucketing"
NUMBERED = outline.numbered(LAB)
EXERCISES: list[Exercise] = exercises_in(ddp)
MOST = sum(one.points for one in EXERCISES)
FIRST = EXERCISES[0].points
# As lib/gradebook_exporter.rb of Canvas writes it: a line about posting, points, names that need quotes, totals.
CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,Notes,Essay (17),06 · DDP and bucketing (1234),Current Score
,,,,,,,Manual Posting,
    Points Possible,,,,,,10.00,20.00,(read only)
"Müller, Ana",101,S-1,amueller,"Monday, 8 a.m.",late,7.00,,70.00
"Okoro, Ben",102,S-2,bokoro,Tuesday,,8.00,3.00,80.00
"Student, Test",103,,abc123,Tuesday,,,,
"""
# As Moodle's plain text export of grades writes it, with headings of a German site and a tabulator.
MOODLE = """\
Vorname\tNachname\tID-Nummer\tInstitution\tE-Mail-Adresse\tAufgabe: Aufsatz (Punkte)\tZuletzt geladen
Ana\tMüller\t7\tPhysik\tana@example.org\t5,00\t1700000000
Ben\tOkoro\t8\tPhysik\tben@example.org\t-\t1700000000
Cleo\tOkoro\t9\tPhysik\tcleo@example.org\t-\t1700000000
"""


def graded(*, right: list[str] = (), first: list[str] = (), unjudged: list[str] = (), idle: list[str] = ()) -> Grades:
    """Learners with all exercises right, with the first alone, with one that was not judged, with nothing handed in."""
    grades = Grades(EXERCISES, [*right, *first, *unjudged, *idle])
    grades.notes |= {(who, LAB): [] for who in (*right, *first, *unjudged)} | {(who, ""): ["none"] for who in idle}
    for who in (*right, *first, *unjudged):
        for place, one in enumerate(EXERCISES):
            missing = NOT_JUDGED if who in unjudged else WRONG
            grades.verdicts[who, LAB, one.name] = Verdict(RIGHT if who in right or place == 0 else missing)
    return grades


def written(tmp_path: Path, system: str, export: str, grades: Grades) -> tuple[list[list[str]], list[str]]:
    roster = tmp_path / "export.csv"
    roster.write_text(export, encoding="utf-8-sig")
    said = writer(system, roster, tmp_path)(grades, tmp_path)
    separator = "\t" if "\t" in export else ","
    with (tmp_path / f"{system}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter=separator)), said


def test_canvas_gets_its_own_rows_and_its_own_column_in_its_own_points(tmp_path: Path) -> None:
    table, said = written(tmp_path, "canvas", CANVAS, graded(right=["amueller"], first=["102"], idle=["103"]))
    assert table == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "06 · DDP and bucketing (1234)"],
        ["    Points Possible", "", "", "", "", "20"],
        ["Müller, Ana", "101", "S-1", "amueller", "Monday, 8 a.m.", "20.00"],
        ["Okoro, Ben", "102", "S-2", "bokoro", "Tuesday", f"{20 * FIRST / MOST:.2f}"],
    ]
    assert said == [f"{tmp_path / 'canvas.csv'} is to be imported there."]


def test_canvas_gets_a_new_assignment_where_it_has_none_and_old_grades_stay(tmp_path: Path) -> None:
    export = CANVAS.replace("06 · DDP and bucketing (1234)", "06 · Pipelines (1234)")
    table, _ = written(tmp_path, "canvas", export, graded(first=["Ben Okoro"]))
    assert [row[-1] for row in table] == [NUMBERED, str(MOST), f"{FIRST:.2f}"]
    table, said = written(tmp_path, "canvas", CANVAS, graded(unjudged=["bokoro"]))
    assert table[-1][-1] == "3.00" and said[0] == f"bokoro: {NUMBERED} was not judged as a whole, so it has no points."


def test_moodle_gets_points_of_a_hundred_beside_what_says_who_it_is(tmp_path: Path) -> None:
    names = ["Ana Müller_4711_assignsubmission_file", "ben@example.org", "Okoro", "8888"]
    table, said = written(tmp_path, "moodle", MOODLE, graded(right=names[:1], first=names[1:]))
    assert table == [
        ["Vorname", "Nachname", "ID-Nummer", "Institution", "E-Mail-Adresse", NUMBERED],
        ["Ana", "Müller", "7", "Physik", "ana@example.org", "100.00"],
        ["Ben", "Okoro", "8", "Physik", "ben@example.org", f"{100 * FIRST / MOST:.2f}"],
    ]
    assert said[:2] == [f"{who}: no row of export.csv is theirs alone, so moodle.csv has none." for who in names[2:]]


@pytest.mark.parametrize(
    ("system", "export", "sentence"),
    [
        ("canvas", MOODLE, "is not what Canvas exports: its first line has Student, ID and Section."),
        ("canvas", None, r"cannot be read: No such file"),
        ("moodle", b"\xff\xfe\xff", "cannot be read: it is not text in UTF-8"),
        ("nbgrader", None, "is not there: name it with --roster FILE"),
    ],
)
def test_a_roster_that_is_none_is_refused_before_anything_is_graded(tmp_path: Path, system, export, sentence) -> None:
    roster = tmp_path / "roster"
    if export is not None:
        roster.write_bytes(export if isinstance(export, bytes) else export.encode())
    with pytest.raises(LabError, match=sentence):
        writer(system, roster, tmp_path)


def test_make_grade_says_where_a_roster_comes_from_and_writes_beside_the_table(tmp_path: Path, capsys) -> None:
    labs = official(tmp_path / "course")
    hand_in(tmp_path / "class", "amueller", words(first=f"first = {ANSWER}"))
    command = [str(tmp_path / "class"), "--labs", str(labs), "--for", "canvas"]
    assert main(command) == 2
    assert "export them (Grades → Export), add --roster FILE" in capsys.readouterr().err
    assert not (tmp_path / "class/grades.csv").exists()
    (tmp_path / "export.csv").write_text(CANVAS, encoding="utf-8")
    with found_by_kernels():
        assert main([*command, "--roster", str(tmp_path / "export.csv")]) == 0
    assert f"{tmp_path / 'class/canvas.csv'} is to be imported there." in capsys.readouterr().out
    assert "not judged as a whole" not in (tmp_path / "class/canvas.csv").read_text(encoding="utf-8")


def test_nbgrader_reads_the_points_that_it_was_given(tmp_path: Path, monkeypatch) -> None:
    """Written by nbgrader's own code into its own gradebook, also over an assignment that it has graded before."""
    api = pytest.importorskip("nbgrader.api", reason="nbgrader is no package of the course: pip install nbgrader")
    plugins = pytest.importorskip("nbgrader.plugins")
    path = tmp_path / "gradebook.db"
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # a new one is made with alembic
    with api.Gradebook(f"sqlite:///{path}") as book:
        book.add_assignment("ddp_and_bucketing")
        book.add_student("ana", first_name="Ana")
        book.add_submission("ddp_and_bucketing", "ana")  # as `nbgrader autograde` leaves it: no cell of ours
    for grades in (graded(first=["ana", "ben"]), graded(right=["ana"], unjudged=["ben"], idle=["cleo"])):
        said = writer("nbgrader", None, tmp_path)(grades, tmp_path)
        assert said == [f"{path} has the points: formgrader shows them, `nbgrader export` writes them."]
    with api.Gradebook(f"sqlite:///{path}") as book:
        exporter = plugins.CsvExportPlugin()
        exporter.to = str(tmp_path / "out.csv")
        exporter.export(book)
        assert [book.find_submission(LAB, who).needs_manual_grade for who in ("ana", "ben")] == [False, True]
    with (tmp_path / "out.csv").open() as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert {who: (row["assignment"], row["score"], row["max_score"]) for who, row in rows.items()} == {
        "ana": (LAB, f"{MOST:.1f}", f"{MOST:.1f}"),
        "ben": (LAB, f"{FIRST:.1f}", f"{MOST:.1f}"),
    }


@pytest.mark.parametrize("given", ["nowhere:1", "ddp_and_bucketing", "ddp_and_bucketing:one"])
def test_which_exercises_count_is_said_in_one_way(tmp_path: Path, capsys, given: str) -> None:
    assert main([str(tmp_path), "--count", given]) == 2
    assert capsys.readouterr().err == (
        f"--count takes a lab and its exercises, such as ddp_and_bucketing:1,2, not {given!r}.\n"
    )


@pytest.mark.extras
def test_exercises_that_do_not_count_have_no_points_and_numbers_are_those_of_the_lab(tmp_path: Path) -> None:
    labs = official(tmp_path / "course")
    (tmp_path / "class/ana").mkdir(parents=True)
    (tmp_path / "class/ana/97_words.ipynb").write_text("torn", encoding="utf-8")
    grades = grade(tmp_path / "class", labs, only={"words": {2}})
    (second,) = grades.exercises
    assert second.name == "second" and grades.points("ana") == (0, second.points)
    for lab in outline.slugs("solutions"):
        minutes = outline.IN_LAB.findall(outline.notebook(lab, "solutions").read_text(encoding="utf-8"))
        assert [str(one.minutes) for one in exercises_in(import_module(f"checks.labs.{lab}"))] == minutes, lab
