"""Grading: every learner gets a line, whatever their notebook does, and results are kept as they come."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path

import psutil
import pytest
import toy_lab
from class_support import TOY, WORDS, found_by_kernels, hand_in, official, words, words_lab
from toy_word_checks import RIGHT

from checks.grade import handed_in
from checks.grade.__main__ import main
from checks.grade.grading import grade
from checks.grade.official import official_labs
from checks.grade.sandbox import Limits, Sandboxes
from course.build import LabError
from course.outline import ROOT

SOLVED = toy_lab.SOLVED
LIMITS = Limits(cell=6, notebook=40)


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The official labs."""
    return official(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module", autouse=True)
def _kernels_find_the_toy_checks():
    with found_by_kernels():
        yield


def states(grades, learner: str, lab: str) -> list[str]:
    return [grades.state(learner, exercise) for exercise in grades.of(lab)]


# ---------------------------------------------------------------- a class of learners, graded once
def fill_class(folder: Path, lab: Path) -> None:
    hand_in(folder, "Ana Müller", toy_lab.solved(lab, **SOLVED), f"{TOY} (1)")
    ben = toy_lab.solved(lab, add="    import os; os._exit(3)", mean="    return tensor")
    hand_in(folder, "ben", ben, TOY)
    hand_in(folder, "ben", words(both=f"left = {RIGHT}\nright = lambda: None"))

    cheat = toy_lab.solved(lab, add="    return 7")
    toy_lab.cell(cheat, "check-add").source = "class check:\n    add = print\nprint('✓ right: cases: 3')"
    cheat.cells = [cell for cell in cheat.cells if cell.id != "check-mean"]
    cheat.cells.append(toy_lab.code("extra", "import toy_checks as check\ncheck.add(lambda a, b: a + b)"))
    patch = "import checks.engine.exercises as f\nf.Exercise.verdict = lambda *_: f.Verdict('right')"
    cheat.cells.insert(2, toy_lab.code("patch", patch))
    hand_in(folder, "cheat", cheat, TOY)

    hand_in(folder, "crash", words(first=f"first = {RIGHT}", second="import os\nos._exit(1)"))
    hand_in(folder, "hang", words(first=f"first = {RIGHT}\nwhile True: pass", second=f"second = {RIGHT}"))
    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    hand_in(folder, "deaf", words(first=f"first = {RIGHT}", second=deaf))
    rename = words(
        both="1 / 0", first=f"my_first = {RIGHT}", second="import threading\nsecond = threading.Lock().acquire"
    )
    hand_in(folder, "rename", rename)

    (folder / "torn").mkdir()
    (folder / "torn" / f"{WORDS}.ipynb").write_text('{"cells": [')
    (folder / "idle").mkdir()
    (folder / "idle" / "other.ipynb").write_text("not a lab")


@pytest.fixture(scope="module")
def graded(tmp_path_factory, labs):
    folder = tmp_path_factory.mktemp("class")
    fill_class(folder, labs / f"{TOY}.ipynb")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    grades = grade(folder, labs, limits=LIMITS)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return grades


def test_every_learner_has_a_row(graded):
    assert graded.learners == ["Ana Müller", "ben", "cheat", "crash", "deaf", "hang", "idle", "rename", "torn"]
    assert graded.notes["idle", ""] == ["not graded, for its name is that of no lab with checks: other.ipynb."]


def test_right_wrong_and_unwritten_answers_are_told_apart(graded):
    assert states(graded, "Ana Müller", "toy") == ["right", "right", "right"]
    assert states(graded, "ben", "toy") == ["wrong", "wrong", "not started"]
    assert "ended its process (exit code 3)" in graded.verdicts["ben", "toy", "add"].text


def test_edited_deleted_and_patched_checks_do_not_help(graded):
    assert states(graded, "cheat", "toy") == ["wrong", "not started", "not started"]
    assert "measured: 7; expected: 3" in graded.verdicts["cheat", "toy", "add"].text
    assert graded.notes["cheat", "toy"] == [
        "an old version of the lab, or check cells were deleted: these were put back at the end: Mean over ranks."
    ]


def test_a_notebook_that_kills_its_kernel_keeps_what_came_before(graded):
    assert states(graded, "crash", "words") == ["right", "not there", "not there", "not there"]
    assert graded.notes["crash", "words"] == ["cell 4 ended its kernel; what follows it was not run."]


def test_a_cell_that_hangs_is_interrupted_and_the_rest_goes_on(graded):
    assert states(graded, "hang", "words")[:2] == ["right", "right"]
    assert graded.notes["hang", "words"] == ["cell 2 was interrupted after 6 s."]


def test_a_cell_that_cannot_be_interrupted_ends_the_notebook(graded):
    assert states(graded, "deaf", "words")[:2] == ["right", "not there"]
    assert "cell 4 was stopped after 6 s, for it cannot be interrupted" in graded.notes["deaf", "words"][0]


def test_what_cannot_be_handed_in_is_explained(graded):
    assert states(graded, "rename", "words")[:2] == ["not there", "wrong"]
    assert "First word: nothing to check (NameError: name 'first' is not defined)." in graded.notes["rename", "words"]
    told = graded.notes["rename", "words"][1]
    assert "name 'left' is not defined; before, cell 6 had failed: ZeroDivisionError" in told
    assert "cannot be sent to another process" in graded.verdicts["rename", "words", "second"].text


def test_a_torn_file_is_a_row_that_says_so(graded):
    assert states(graded, "torn", "words") == ["not there"] * 4
    assert "is no notebook" in graded.notes["torn", "words"][0]


def test_parts_of_an_exercise_have_points(graded):
    both = graded.of("words")[2]
    assert (both.points, both.earned(graded.verdict("ben", both))) == (4, 1)
    assert graded.sentence("ben", both).endswith("Right so far: left.")


def test_not_judged_is_neither_right_nor_wrong(graded):
    never = graded.of("words")[3]
    assert graded.state("hang", never) == "not judged" and "no_such_module" in graded.sentence("hang", never)
    assert graded.points("hang", "words") == (3, 7)  # of 12, less the five that nobody could earn here
    assert "? not judged" in graded.text()


def test_the_table_shows_learner_by_exercise_points_and_totals(graded):
    lines = graded.text().splitlines()
    block = lines.index("toy (points)")
    assert lines[block + 1 : block + 4] == [
        "  1  Add two numbers (1)",
        "  2  Mean over ranks (2)",
        "  3  There and back (3)",
    ]
    assert "Ana Müller  ✓  ✓  ✓  6 of 6" in lines
    assert "crash       ✓  –  –  –  1 of 12" in lines
    assert "hang: words: cell 2 was interrupted after 6 s." in lines


def test_the_csv_has_every_sentence_and_nothing_that_a_spreadsheet_computes(graded, tmp_path):
    graded.learners[0] = "=1+1"
    try:
        graded.write_csv(tmp_path / "grades.csv")
    finally:
        graded.learners[0] = "Ana Müller"
    rows = list(csv.DictReader((tmp_path / "grades.csv").open(encoding="utf-8-sig")))
    assert [row["learner"] for row in rows[:2]] == ["'=1+1", "ben"]
    ben = rows[1]
    assert (ben["points"], ben["of"], ben["right"]) == ("1", "13", "0")
    assert (ben["toy/mean_over_ranks"], ben["toy/mean_over_ranks points"]) == ("wrong", "0")
    assert "Is the sum divided by the world size?" in ben["toy/mean_over_ranks sentence"]
    assert "cell 2 was interrupted" in rows[5]["notes"]


def test_the_feedback_has_the_sentence_of_every_check(graded):
    ben = graded.feedback("ben")
    assert ben.startswith("# ben\n\n**1 of 13 points**")
    assert "### ✗ Mean over ranks: wrong (0 of 2 points)\n\nIs the sum divided" in ben
    assert "### ✗ Two words: wrong (1 of 4 points)" in ben
    assert "### ? Never judged: not judged\n\nWhere this was graded: no_such_module is not" in ben
    assert "Add two numbers" not in graded.feedback("hang"), "only labs that were handed in"


def test_no_kernel_is_left_behind(graded):
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if "ipykernel" in " ".join(child.cmdline())]


# ---------------------------------------------------------------- what was handed in
def found_in(folder: Path, labs: Path):
    found, notes = handed_in.find_handed_in(folder, official_labs(labs))
    return [(item.learner, item.slug, item.path.relative_to(folder).as_posix(), item.note) for item in found], notes


def test_nbgraders_folders_are_understood(labs, tmp_path):
    hand_in(tmp_path / "submitted" / "ana", "lab-4", words(), "05_words")  # (the number has changed since)
    hand_in(tmp_path / "submitted" / "ben", "98_toy", toy_lab.solved(labs / f"{TOY}.ipynb"), "my answers")
    hand_in(tmp_path / "source", "98_toy", toy_lab.solution(), "98_toy")
    found, notes = found_in(tmp_path, labs)
    assert [item[:3] for item in found] == [
        ("ana", "words", "submitted/ana/lab-4/05_words.ipynb"),
        ("ben", "toy", "submitted/ben/98_toy/my answers.ipynb"),
    ]
    assert notes == {"ana": [], "ben": []}


def test_one_learners_folder_with_a_folder_for_each_lab_is_one_learner(labs, tmp_path):
    hand_in(tmp_path / "dora", "97_words", words())
    hand_in(tmp_path / "dora", "98_toy", toy_lab.solution(), TOY)
    assert [item[:2] for item in found_in(tmp_path / "dora", labs)[0]] == [("dora", "words"), ("dora", "toy")]


def test_of_two_notebooks_of_a_lab_the_newest_counts_and_the_other_is_named(labs, tmp_path):
    old, new = (hand_in(tmp_path, "ana", words(), f"97_words{suffix}") for suffix in (" (1)", ""))
    os.utime(old, (1, 1))
    os.utime(new, (2, 2))
    lecture = hand_in(tmp_path / "ana", "notebooks", toy_lab.solution(), "97_words")  # of the same name
    assert lecture.exists()
    [(_, _, path, note)], _ = found_in(tmp_path, labs)
    assert path == "ana/97_words.ipynb"
    assert note.startswith("97_words.ipynb was graded, not 97_words (1).ipynb, notebooks/97_words.ipynb: ")


def test_files_that_are_not_graded_are_named(labs, tmp_path):
    composed = unicodedata.normalize("NFD", "Jürgen")
    hand_in(tmp_path, composed, words(), "97_words-Copy1")
    (tmp_path / composed / "98_toy.zip").write_bytes(b"PK")
    hand_in(tmp_path, composed, words(), "12_unknown")
    hand_in(tmp_path, f"{composed}/.ipynb_checkpoints", words(), "97_words")
    (tmp_path / "nobody\n\x1b[31m").mkdir()
    found, notes = found_in(tmp_path, labs)
    assert [item[:2] for item in found] == [("Jürgen", "words")]
    assert notes == {
        "Jürgen": [
            "not looked into: 98_toy.zip. Unpack it, and grade again.",
            "not graded, for its name is that of no lab with checks: 12_unknown.ipynb.",
        ],
        "nobody??[31m": ["no notebook is in this folder."],
    }


def test_a_notebook_without_the_labs_cells_says_so(labs):
    lab = official_labs(labs)["words"]
    notebook = words_lab()
    notebook.cells = notebook.cells[:2]
    assert "is it the lecture" in lab.about(notebook)
    assert len(lab.cells_to_run(notebook)) == 2 + 4


# ---------------------------------------------------------------- the command
def test_without_a_folder_of_learners_nothing_is_graded(labs, capsys):
    assert main(["--labs", str(labs)]) == 2
    assert "`make grade DIR=folder`" in capsys.readouterr().err
    assert main([str(labs), "--labs", str(labs)]) == 2
    assert "holds the labs themselves" in capsys.readouterr().err
    assert not (labs / "grades.csv").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere", "there is no folder"),
        ("file", "is a file, not a folder"),
        (".", "holds no notebook of the course, nor do its folders (looked for NN_toy.ipynb, NN_words.ipynb)"),
    ],
)
def test_a_folder_that_cannot_be_graded_gets_one_sentence(labs, tmp_path, capsys, name, sentence):
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / name), "--labs", str(labs)]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_limits_are_positive_numbers(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--jobs", "0"])
    assert "invalid" in capsys.readouterr().err


def test_without_official_labs_there_is_nothing_to_grade(tmp_path):
    with pytest.raises(LabError, match="there are no labs yet"):
        grade(tmp_path, tmp_path / "labs")


def test_a_place_that_cannot_be_written_gets_one_sentence(labs, tmp_path, capsys):
    (tmp_path / f"{WORDS}.ipynb").write_text("torn")
    for _ in range(2):  # (a grading that has ended is none that was interrupted)
        assert main([str(tmp_path), "--labs", str(labs), "--out", "/dev/null"]) == 2
        assert "/dev/null/feedback cannot be written" in capsys.readouterr().err


def test_results_come_as_they_are_found_and_stay_after_an_interrupt(labs, tmp_path):
    hand_in(tmp_path, "ana", words(first=f"first = {RIGHT}"))
    hand_in(tmp_path, "ben", words(first="while True: pass"))
    hand_in(tmp_path, "cleo", words())
    command = [sys.executable, "-m", "checks.grade", str(tmp_path), "--labs", str(labs), "--jobs", "1"]
    grading = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert grading.stdout.readline() == "1 of 3  ana, words: ✓ ✗ ✗ ?   1 of 7\n"
        assert "Measured: it says so" in (tmp_path / "feedback" / "ana.md").read_text(encoding="utf-8")
        below = psutil.Process(grading.pid).children(recursive=True)
        grading.send_signal(signal.SIGINT)
        rest = grading.communicate(timeout=60)[0]
    finally:
        grading.kill()
    assert grading.returncode == 130
    assert "2 notebooks were not graded any more." in rest
    assert not [process for process in below if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    rows = list(csv.DictReader((tmp_path / "grades.csv").open(encoding="utf-8-sig")))
    assert [row["words/first"] for row in rows] == ["right", "not graded", "not graded"]
    assert main([str(tmp_path), "--labs", str(labs / "nowhere")]) == 2, "its own files are no learners"


def test_an_interrupt_at_a_bad_moment_does_not_hold_the_grader(labs, tmp_path):
    # The worst moment: the main thread has just taken the locks of all futures, and not yet entered the block.
    hand_in(tmp_path, "ben", words(first="while True: pass"))
    program = """if True:
        import os, runpy, signal, sys
        from concurrent.futures import _base
        enter = _base._AcquireFutures.__enter__
        def interrupted(self):
            enter(self)
            os.kill(os.getpid(), signal.SIGINT)
        _base._AcquireFutures.__enter__ = interrupted
        runpy.run_module("checks.grade", run_name="__main__", alter_sys=True)
    """
    command = [sys.executable, "-c", program, str(tmp_path), "--labs", str(labs)]
    grading = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        said = grading.communicate(timeout=60)[1]
    finally:
        grading.kill()
    assert grading.returncode == 130
    assert "Interrupted before the first notebook was graded." in said


def test_what_learners_can_do_is_said_before_anything_runs(tmp_path):
    with Sandboxes(tmp_path, Limits(notebook=60, memory=2 << 30), same_user=True) as place:
        place.namespaces = False
    assert "with your rights; THIS SYSTEM CANNOT HIDE" in place.words and "60 s and 2 GB" in place.words
