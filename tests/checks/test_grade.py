"""Grading: every learner gets a line, whatever their notebook does, and nobody talks a check over."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import psutil
import pytest
import toy_checks
import toy_lab

from utils.checks.grading.__main__ import main
from utils.checks.grading.grade import grade
from utils.course.build import LabError, build

SOLVED = toy_lab.SOLVED
LAB = "98_toy"


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The official labs."""
    root = tmp_path_factory.mktemp("course")
    toy_lab.write(toy_lab.solution(), root / "solutions" / f"{LAB}.ipynb")
    build(root / "solutions", root / "labs")
    return root / "labs"


@pytest.fixture(scope="module", autouse=True)
def _kernels_find_the_toy_checks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(Path(toy_checks.__file__).parent), os.environ.get("PYTHONPATH", "")])
        )
        yield


def states(grades, learner: str) -> list[str]:
    return [grades.state(learner, exercise) for exercise in grades.exercises]


# ---------------------------------------------------------------- a class of learners, graded once
def fill_class(folder: Path, lab: Path) -> None:
    def hand_in(learner, notebook):
        toy_lab.write(notebook, folder / learner / f"{LAB}.ipynb")

    hand_in("ana", toy_lab.solved(lab, **SOLVED))
    hand_in("ben", toy_lab.solved(lab, add="    return a - b", mean="    return tensor"))
    shutil.copytree(lab.parent, folder / "cleo")

    cheat = toy_lab.solved(lab, add="    return 7")
    toy_lab.cell(cheat, "check-add").source = "class check:\n    add = print\nprint('✓ right: cases: 3')"
    cheat.cells = [cell for cell in cheat.cells if cell.id != "check-mean"]
    cheat.cells.append(toy_lab.code("extra", "import toy_checks as check\ncheck.add(lambda a, b: a + b)"))
    patch = "import utils.checks.framework as f\nf.Exercise.verdict = lambda *_: f.Verdict('right')"
    cheat.cells.insert(2, toy_lab.code("patch", patch))
    hand_in("cheat", cheat)

    crash = toy_lab.solved(lab, **SOLVED)
    crash.cells.insert(4, toy_lab.code("crash", "import os\nos._exit(1)"))
    hand_in("crash", crash)

    hang = toy_lab.solved(lab, **SOLVED)
    hang.cells.insert(4, toy_lab.code("hang", "while True:\n    pass"))
    hand_in("hang", hang)

    loop = toy_lab.solved(lab, add="    while True: pass", mean=SOLVED["mean"], back="    import os; os._exit(3)")
    hand_in("loop", loop)

    rename = toy_lab.solved(lab, **SOLVED)
    toy_lab.cell(rename, "add").source = "def my_add(a, b):\n    return a + b"
    toy_lab.cell(rename, "mean").source = "import threading\nmean_over_ranks = threading.Lock().acquire"
    hand_in("rename", rename)

    (folder / "torn").mkdir()
    (folder / "torn" / f"{LAB}.ipynb").write_text('{"cells": [')
    (folder / "idle").mkdir()
    (folder / "idle" / "other.ipynb").write_text("not a lab")


@pytest.fixture(scope="module")
def graded(tmp_path_factory, labs):
    folder = tmp_path_factory.mktemp("class")
    fill_class(folder, labs / f"{LAB}.ipynb")
    (folder / "ana" / ".progress.json").write_text("ana's own")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy_checks, "SECONDS", 6)  # "loop" takes all of them
        grades = grade(folder, labs, cell_timeout=10, limit=100)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return grades


def test_every_learner_with_a_lab_has_a_row(graded):
    assert graded.learners == ["ana", "ben", "cheat", "cleo", "crash", "hang", "loop", "rename", "torn"]


def test_right_wrong_and_unwritten_answers_are_told_apart(graded):
    assert states(graded, "ana") == ["right", "right", "right"]
    assert states(graded, "ben") == ["wrong", "wrong", "not started"]
    assert states(graded, "cleo") == ["not started", "not started", "not started"]


def test_edited_deleted_and_patched_checks_do_not_help(graded):
    assert states(graded, "cheat") == ["wrong", "not started", "not started"]
    assert "measured: 7; expected: 3" in graded.verdicts["cheat", "toy", "add"].text


def test_a_notebook_that_kills_its_kernel_keeps_what_came_before(graded):
    assert states(graded, "crash") == ["right", "not there", "not there"]
    assert graded.notes["crash", "toy"] == ["the notebook killed its kernel."]


def test_a_cell_that_hangs_is_interrupted_and_the_rest_goes_on(graded):
    assert states(graded, "hang") == ["right", "right", "right"]
    assert graded.notes["hang", "toy"] == ["cell 5 was interrupted after 10 s."]


def test_an_answer_that_hangs_or_crashes_is_wrong(graded):
    assert states(graded, "loop") == ["wrong", "right", "wrong"]
    assert "is there a loop that never ends?" in graded.verdicts["loop", "toy", "add"].text
    assert "ended its process (exit code 3)" in graded.verdicts["loop", "toy", "there_and_back"].text


def test_what_cannot_be_handed_in_is_explained(graded):
    assert states(graded, "rename") == ["not there", "wrong", "right"]
    assert "nothing to check (NameError: name 'add' is not defined)" in graded.notes["rename", "toy"][0]
    assert "cannot be sent to another process" in graded.verdicts["rename", "toy", "mean_over_ranks"].text


def test_a_torn_file_is_a_row_that_says_so(graded):
    assert states(graded, "torn") == ["not there"] * 3
    assert "is no notebook" in graded.notes["torn", "toy"][0]


def test_the_table_shows_learner_by_exercise_and_totals(graded):
    lines = graded.text().splitlines()
    assert lines[:5] == ["toy", "  1  Add two numbers", "  2  Mean over ranks", "  3  There and back", ""]
    assert "learner  1  2  3  right" in lines
    assert "ana      ✓  ✓  ✓  3/3" in lines
    assert "crash    ✓  –  –  1/3" in lines
    assert "right    3  3  3  of 9" in lines
    assert any(line.startswith("ben, toy, Add two numbers: ✗ Did you add") for line in lines)


def test_the_csv_holds_the_same(graded, tmp_path):
    graded.write_csv(tmp_path / "grades.csv")
    rows = list(csv.DictReader((tmp_path / "grades.csv").open(encoding="utf-8")))
    assert rows[0] == {
        "learner": "ana",
        "toy/add": "right",
        "toy/mean_over_ranks": "right",
        "toy/there_and_back": "right",
        "right": "3",
        "of": "3",
        "notes": "",
    }
    assert [row["right"] for row in rows] == ["3", "0", "0", "0", "1", "3", "1", "1", "0"]


def test_no_kernel_is_left_behind(graded):
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if "ipykernel" in " ".join(child.cmdline())]


# ---------------------------------------------------------------- the command
def test_without_a_folder_of_learners_nothing_is_graded(labs, capsys):
    assert main(["--labs", str(labs)]) == 2
    assert "`make grade DIR=folder`" in capsys.readouterr().err
    assert main([str(labs), "--labs", str(labs)]) == 2
    assert "holds the labs themselves" in capsys.readouterr().err
    assert not (labs / "grades.csv").exists()


def test_a_single_learners_folder_is_graded_by_the_command(labs, tmp_path, capsys):
    folder = tmp_path / "dora"
    toy_lab.write(toy_lab.solved(labs / f"{LAB}.ipynb", add=SOLVED["add"]), folder / f"{LAB}.ipynb")
    assert main([str(folder), "--labs", str(labs)]) == 0
    assert "dora     ✓  ○  ○  1/3" in capsys.readouterr().out
    assert (folder / "grades.csv").read_text(encoding="utf-8").startswith("learner,toy/add,")


def test_a_notebook_that_never_ends_is_stopped(labs, tmp_path):
    notebook = toy_lab.solved(labs / f"{LAB}.ipynb", **SOLVED)
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    pass"
    notebook.cells.insert(4, toy_lab.code("stubborn", stubborn))
    toy_lab.write(notebook, tmp_path / f"{LAB}.ipynb")
    grades = grade(tmp_path, labs, cell_timeout=3, limit=15)
    assert states(grades, tmp_path.name) == ["right", "not there", "not there"]
    assert grades.notes[tmp_path.name, "toy"] == ["the notebook was stopped after 15 s."]


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda folder: folder / "nowhere", "there is no folder"),
        (lambda folder: folder, "holds no notebook of the course, nor do its folders (looked for NN_toy.ipynb)"),
    ],
)
def test_a_folder_that_cannot_be_graded_gets_one_sentence(labs, tmp_path, capsys, prepare, sentence):
    assert main([str(prepare(tmp_path)), "--labs", str(labs)]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_without_official_labs_there_is_nothing_to_grade(tmp_path):
    with pytest.raises(LabError, match="there are no labs yet"):
        grade(tmp_path, tmp_path / "labs")


def test_a_csv_that_cannot_be_written_gets_one_sentence(labs, tmp_path, capsys):
    toy_lab.write(toy_lab.solved(labs / f"{LAB}.ipynb"), tmp_path / f"{LAB}.ipynb")
    assert main([str(tmp_path), "--labs", str(labs), "--csv", "/dev/null/grades.csv"]) == 2
    assert "/dev/null/grades.csv cannot be written" in capsys.readouterr().err
