"""A lecture is inserted, moved or split off: every file and every mention of a number follows, or nothing changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from course_copy import copy_course, run_there

from course import outline, readme
from course.__main__ import main
from course.renumber import renumber, renumber_notebook
from course.size import FLOORS

pytestmark = pytest.mark.extras  # a tool of authors

ROOT = outline.ROOT
PARTS = ("notebooks", "labs", "solutions", "docs", "scripts", *FLOORS, "benchmarks/results")
TESTS = ("repository", "support")
SLUGS = {0: "start_here", 1: "one", 2: "two", 3: "three", 10: "ten"}
UP = {0: 0, 1: 1, 2: 3, 3: 4, 10: 11}


# ---------------------------------------------------------------------- texts
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# 02 · Two", "# 03 · Two"),
        ("# Lab 02 · Two", "# Lab 03 · Two"),
        ("[lecture 02](../notebooks/02_two.ipynb), [03 · T](03_three.ipynb)", None),
        ("As lecture 02 says, and Lecture 01.", "As lecture 03 says, and Lecture 01."),
        ("(lecture 02): lecture 03's, lecture\n02", "(lecture 03): lecture 04's, lecture\n03"),
        ("lectures 01, 02 and 03; Labs 02 to 10; labs 02–03", "lectures 01, 03 and 04; Labs 03 to 11; labs 03–04"),
        (
            "Lectures and labs 02 and 03, or lectures 01, 02, or 10",
            "Lectures and labs 03 and 04, or lectures 01, 03, or 11",
        ),
        ("in lecture 02, 10 ranks; lecture 02 and 03 seconds", "in lecture 03, 10 ranks; lecture 03 and 03 seconds"),
        ("cd 02_two; x02_two, 02_twofold, 02_three, 102_two", "cd 03_two; x02_two, 02_twofold, 02_three, 102_two"),
        ("02 · 10 is 20, lecture 42, 10 labs, lectures 2 and 3, lab 02.5, relab 02", "="),
    ],
)
def test_numbers_of_lectures_are_found_and_no_others(before: str, after: str | None) -> None:
    if after is None:
        after = "[lecture 03](../notebooks/03_two.ipynb), [04 · T](04_three.ipynb)"
    after = before if after == "=" else after
    assert renumber(before, SLUGS, UP) == after
    slugs = {UP[number]: slug for number, slug in SLUGS.items()}
    assert renumber(after, slugs, {new: old for old, new in UP.items()}) == before


def test_a_notebook_is_mended_where_it_is_read_and_keeps_the_rest() -> None:
    image = {"image/png": "lecture 02", "text/html": ["see lecture\n", "02"], "text/plain": "lab 02"}
    cells = [
        {
            "cell_type": "markdown",
            "id": "lab-02",
            "metadata": {"tags": ["lab 02"]},
            "source": ["as lecture\n", "02 is"],
        },
        {
            "cell_type": "code",
            "outputs": [{"data": image}, {"text": ["lab 02\n"]}, {"traceback": ["lab", " 02", "lab 02"]}],
        },
    ]
    text = json.dumps({"cells": cells, "metadata": {"course": {"card": "after lecture 02"}}, "nbformat": 4})
    new = json.loads(renumber_notebook(text, lambda part: renumber(part, SLUGS, UP)))
    markdown, code = new["cells"]
    assert markdown == cells[0] | {"source": ["as lecture\n", "03 is"]}
    shown, printed, failed = code["outputs"]
    assert shown["data"] == {"image/png": "lecture 02", "text/html": ["see lecture\n", "03"], "text/plain": "lab 03"}
    assert (printed["text"], failed["traceback"]) == (["lab 03\n"], ["lab", " 02", "lab 03"])
    assert new["metadata"]["course"]["card"] == "after lecture 03"
    assert renumber_notebook(text, lambda part: part) == text


# ---------------------------------------------------------------------- the course
@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the repository holds of the course."""
    return copy_course(tmp_path_factory.mktemp("original"), *PARTS, *(f"tests/{name}" for name in TESTS))


@pytest.fixture
def course(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "course"))


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def say(capsys: pytest.CaptureFixture[str], root: Path, *command: str) -> str:
    assert main([*command, "--root", str(root)]) == 0
    return capsys.readouterr().out


def assert_habits(root: Path) -> None:
    """The habits' tests, run in the copy: all for what is new, and for the rest what new numbers could break.

    That the stored map is today's needs a run of the first lecture.
    """
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-k", "toys or buckets or number or link or stored_by_make_execute or readme or slugs or outside"]
    run_there(root, [*command, "tests/repository/test_notebooks_habits.py", "tests/repository/test_code_habits.py"])


@pytest.mark.nightly
def test_inserting_moving_and_splitting_keep_every_habit(course, capsys):
    before = outline.slugs(root=course)
    *_, last = before
    said = say(capsys, course, "insert", "toys", "--at", "10", "--title", "Toys: to play with", "--lab")
    assert "made notebooks/10_toys.ipynb" in said and "made solutions/10_toys.ipynb" in said
    assert f"renamed 11_{last} to 12_{last}" in said or len(before) > 12
    assert 'make execute NB="notebooks/00_start_here.ipynb"' in said
    say(capsys, course, "move", "checkpointing", "--to", "2")
    say(capsys, course, "split", "ddp_and_bucketing", "more_buckets")

    wanted = [*before[:10], "toys", *before[10:]]
    wanted.remove("checkpointing")
    wanted.insert(2, "checkpointing")
    wanted.insert(wanted.index("ddp_and_bucketing") + 1, "more_buckets")
    assert outline.slugs(root=course) == wanted
    assert (
        set(outline.slugs("labs", course)) == {*outline.slugs("labs"), "toys"} == {*outline.slugs("solutions", course)}
    )
    lectures = {lecture.slug: lecture for lecture in outline.lectures(course)}
    assert lectures["toys"].title == "Toys" and lectures["toys"].stage == lectures[before[9]].stage
    assert lectures["more_buckets"].number == lectures["ddp_and_bucketing"].number + 1
    assert "| [Toys](notebooks/" in (course / "README.md").read_text(encoding="utf-8")
    assert_habits(course)


def test_there_and_back_gives_the_same_bytes(original, course, capsys):
    slug, home = "torchrun", outline.slugs(root=course).index("torchrun")
    before = contents(original)
    said = say(capsys, course, "move", slug, "--to", "3")
    assert "is torn apart" in said and "which does not come next" in said
    assert contents(course) != before and outline.slugs(root=course)[3] == slug
    say(capsys, course, "move", slug, "--to", str(home))
    assert contents(course) == before


REFUSED = [
    (("insert", "Toys", "--at", "2"), "'Toys' is no slug"),
    (("insert", "torchrun", "--at", "2"), "The slug torchrun is taken"),
    (("insert", "toys", "--at", "0"), "A new lecture's number is 1 to"),
    (("insert", "toys", "--at", "90"), "A new lecture's number is 1 to"),
    (("move", "toys", "--to", "2"), "There is no lecture toys"),
    (("move", "torchrun", "--to", "0"), "can be moved to the numbers 1 to"),
    (("move", "torchrun", "--to", "90"), "can be moved to the numbers 1 to"),
    (("move", "start_here", "--to", "2"), "start_here stays number 00"),
    (("split", "toys", "more_toys"), "There is no lecture toys"),
    (("split", "torchrun", "checkpointing"), "The slug checkpointing is taken"),
]


def test_what_cannot_be_done_is_refused_in_one_sentence_and_changes_nothing(course, capsys):
    before = contents(course)
    for command, sentence in REFUSED:
        assert main([*command, "--root", str(course)]) == 2, command
        told = capsys.readouterr()
        assert sentence in told.err and told.err.count("\n") == 1 and told.out == "", told
    assert contents(course) == before


def rename(old: str, new: str):
    return lambda root: (root / old).rename(root / new)


def spoil(name: str, old: str, new: str):
    def change(root: Path) -> None:
        path = root / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


TORCHRUN = outline.notebook("torchrun").name
DIRTY = [
    (rename(f"notebooks/{TORCHRUN}", "notebooks/40_torchrun.ipynb"), "the lectures' numbers are not 0, 1, 2"),
    (rename(f"notebooks/{TORCHRUN}", "notebooks/My notes.ipynb"), "My notes.ipynb is not called NN_slug.ipynb"),
    (rename(f"solutions/{TORCHRUN}", "solutions/08_torchrun.ipynb"), "has no lecture of this name"),
    (lambda root: shutil.copy(root / f"notebooks/{TORCHRUN}", root / "notebooks/99_torchrun.ipynb"), "not 0, 1, 2"),
    (spoil(f"solutions/{TORCHRUN}", "### END SOLUTION", ""), "never ends the solution"),
    (spoil("README.md", readme.BEGIN, ""), "README.md does not mark the table's place"),
]


@pytest.mark.parametrize(("change", "sentence"), DIRTY, ids=[sentence for _, sentence in DIRTY])
def test_a_course_that_is_not_in_order_is_left_alone(course, capsys, change, sentence):
    change(course)
    before = contents(course)
    assert main(["move", "checkpointing", "--to", "2", "--root", str(course)]) == 2
    told = capsys.readouterr().err
    assert sentence in told and told.count("\n") == 1
    assert contents(course) == before
