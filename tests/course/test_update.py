"""`make update`: whatever a learner has run or written, the course becomes new and nothing of theirs is lost."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course.outline import ROOT
from course.update import Refused, update

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")

LECTURE, LAB, OTHER = "notebooks/00_start.ipynb", "labs/01_rings.ipynb", "labs/02_trees.ipynb"
Notebook = dict[str, Any]


def git(folder: Path, *arguments: str) -> str:
    about = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "init.defaultBranch=main"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(
        ["git", *about, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def notebook(*cells: tuple[str, str, str]) -> Notebook:
    """Cells as (id, type, source)."""
    return {
        "cells": [
            {"cell_type": kind, "id": name, "metadata": {}, "source": source.splitlines(True)}
            | ({"outputs": [], "execution_count": None} if kind == "code" else {})
            for name, kind, source in cells
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def write(path: Path, content: Notebook) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def change(path: Path, name: str, source: str | None = None, output: str = "") -> None:
    """What JupyterLab saves when a learner writes into a cell, or only runs it."""
    content = json.loads(path.read_text(encoding="utf-8"))
    (cell,) = (one for one in content["cells"] if one["id"] == name)
    cell["source"] = cell["source"] if source is None else source.splitlines(True)
    if output:
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": [output]}]
    write(path, content)


def cells(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the course comes from."""
    folder = tmp_path / "home"
    folder.mkdir()
    git(folder, "init", "--quiet")
    write(folder / LECTURE, notebook(("title", "markdown", "# 00 · Start"), ("run", "code", "1 + 1")))
    for path in (LAB, OTHER):
        lab = notebook(("title", "markdown", f"# {path[5:7]} · Lab"), ("stub", "code", "def f():\n    ..."))
        lab["cells"].append(copy.deepcopy(lab["cells"][1]) | {"id": "check", "source": ["check.f(f)"]})
        write(folder / path, lab)
    (folder / "code.py").write_text("old\n")
    (folder / ".gitignore").write_text("/mine/\n")
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copytree(ROOT / "course", folder / "course", ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


@pytest.fixture
def learner(home: Path, tmp_path: Path) -> Path:
    git(tmp_path, "clone", "--quiet", str(home), "learner")
    return tmp_path / "learner"


@pytest.fixture
def publish(home: Path) -> Callable[[], None]:
    def commit() -> None:
        git(home, "add", "--all")
        git(home, "commit", "--quiet", "-m", "newer")

    return commit


def kept(learner: Path) -> dict[str, str]:
    """What is in mine/, by its path there without the date."""
    files = (path for path in learner.glob("mine/*/**/*") if path.is_file())
    return {path.relative_to(learner / "mine").as_posix().partition("/")[2]: path.read_text() for path in files}


def test_a_lecture_that_was_run_is_no_hindrance(home: Path, learner: Path, publish: Callable[[], None]) -> None:
    change(learner / LECTURE, "run", output="mine")
    change(home / LECTURE, "run", "2 + 2")
    publish()
    git_would_refuse = subprocess.run(["git", "pull", "--ff-only"], cwd=learner, capture_output=True, text=True)
    assert git_would_refuse.returncode and "would be overwritten" in git_would_refuse.stderr
    update(learner)
    assert (learner / LECTURE).read_bytes() == (home / LECTURE).read_bytes()
    assert kept(learner) == {} and not (learner / "mine").exists() and git(learner, "status", "--porcelain") == ""


def test_an_answer_in_a_lab_that_the_course_has_not_changed_stays_as_it_is(
    home: Path, learner: Path, publish: Callable[[], None]
) -> None:
    change(learner / LAB, "stub", "def f():\n    return 1", output="mine")
    before = (learner / LAB).read_bytes()
    change(home / OTHER, "title", "# 02 · Better")
    publish()
    update(learner)
    assert (learner / LAB).read_bytes() == before and kept(learner) == {}
    assert (learner / OTHER).read_bytes() == (home / OTHER).read_bytes()


def test_an_answer_goes_on_in_a_lab_that_the_course_has_changed(
    home: Path, learner: Path, publish: Callable[[], None]
) -> None:
    change(learner / LAB, "stub", "def f():\n    return 1", output="mine")
    own = json.loads((learner / LAB).read_text())
    own["cells"].insert(2, notebook(("own", "code", "my_test()"))["cells"][0])
    write(learner / LAB, own)
    before = (learner / LAB).read_text()
    change(home / LAB, "title", "# 01 · Better")
    publish()
    said = update(learner)
    assert cells(learner / LAB) == ["# 01 · Better", "def f():\n    return 1", "my_test()", "check.f(f)"]
    assert '"mine"' in (learner / LAB).read_text(), "what the answer has shown"
    assert kept(learner) == {LAB: before}
    assert f"{LAB} is new, and has what you had written in it." in said


def test_where_both_have_changed_a_cell_both_can_be_read(
    home: Path, learner: Path, publish: Callable[[], None]
) -> None:
    change(learner / LAB, "stub", "def f():\n    return 1")
    change(learner / LAB, "title", "# my notes")
    change(home / LAB, "stub", "def f(x):\n    ...")
    change(home / LAB, "title", "# 01 · Better")
    publish()
    update(learner)
    notes, title, answer, course, check = cells(learner / LAB)
    assert (notes, title, answer) == ("# my notes", "# 01 · Better", "def f():\n    return 1")
    assert "def f(x):" in course and check == "check.f(f)"
    kinds = [cell["cell_type"] for cell in json.loads((learner / LAB).read_text())["cells"]]
    assert kinds == ["markdown", "markdown", "code", "markdown", "code"], "running all cells must not undo the answer"


def test_a_lab_with_another_number_takes_its_answers_along(
    home: Path, learner: Path, publish: Callable[[], None]
) -> None:
    change(learner / LAB, "stub", "def f():\n    return 1")
    change(learner / OTHER, "stub", "def f():\n    return 2")
    for old, new in ((OTHER, "labs/03_trees.ipynb"), (LAB, "labs/02_rings.ipynb")):
        git(home, "mv", old, new)
    change(home / "labs/02_rings.ipynb", "title", "# 02 · Lab")
    publish()
    update(learner)
    assert not (learner / LAB).exists() and not (learner / OTHER).exists()
    assert cells(learner / "labs/02_rings.ipynb") == ["# 02 · Lab", "def f():\n    return 1", "check.f(f)"]
    assert "return 2" in cells(learner / "labs/03_trees.ipynb")[1]


def test_a_lab_that_is_gone_and_one_that_is_torn_are_kept(
    home: Path, learner: Path, publish: Callable[[], None]
) -> None:
    change(learner / OTHER, "stub", "def f():\n    return 2")
    (learner / LAB).write_text("{torn")
    answer = (learner / OTHER).read_text()
    (home / OTHER).unlink()
    change(home / LAB, "title", "# 01 · Better")
    publish()
    said = " ".join(update(learner))
    assert kept(learner) == {LAB: "{torn", OTHER: answer}
    assert f"{OTHER} is no longer part of the course." in said and "could not be read as a notebook" in said
    assert not (learner / OTHER).exists() and (learner / LAB).read_bytes() == (home / LAB).read_bytes()


def test_changed_code_of_the_course_stays_or_is_kept(home: Path, learner: Path, publish: Callable[[], None]) -> None:
    (learner / "code.py").write_text("mine\n")
    (learner / "Makefile").write_text("mine\n")
    (learner / LECTURE).unlink()
    (home / "code.py").write_text("new\n")
    publish()
    update(learner)
    assert (learner / "code.py").read_text() == "new\n" and kept(learner) == {"code.py": "mine\n"}
    assert (learner / "Makefile").read_text() == "mine\n" and (learner / LECTURE).exists()


def test_a_learner_who_has_committed_keeps_the_commits(home: Path, learner: Path, publish: Callable[[], None]) -> None:
    change(learner / LAB, "stub", "def f():\n    return 1")
    write(learner / "labs/own.ipynb", notebook(("a", "code", "mine")))
    git(learner, "add", "--all")
    git(learner, "commit", "--quiet", "-m", "my answer")
    own = git(learner, "rev-parse", "HEAD")
    change(learner / OTHER, "stub", "def f():\n    return 2")
    change(home / LAB, "title", "# 01 · Better")
    publish()
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        git(learner, "config", "user.name", name)
        git(learner, "config", "user.email", "somebody@example.org")
    said = update(learner)
    assert "Your commits (1) and the course's are merged in one more." in said
    assert git(learner, "log", "-1", "--format=%P").split() == [own, git(home, "rev-parse", "HEAD")]
    assert cells(learner / LAB) == ["# 01 · Better", "def f():\n    return 1", "check.f(f)"]
    assert git(learner, "status", "--porcelain") == f"M {OTHER}", "what was committed is committed, and nothing else"
    assert cells(learner / "labs/own.ipynb") == ["mine"]
    change(home / LAB, "title", "# 01 · Best")
    publish()
    update(learner)
    assert cells(learner / LAB)[:2] == ["# 01 · Best", "def f():\n    return 1"], "and again"


def test_a_course_whose_history_was_written_anew_is_no_commit_of_the_learners(
    home: Path, learner: Path, publish: Callable[[], None]
) -> None:
    change(learner / LAB, "stub", "def f():\n    return 1")
    (home / "code.py").write_text("newest\n")
    git(home, "commit", "--quiet", "--all", "--amend", "-m", "another first")
    said = update(learner)
    assert git(learner, "rev-parse", "HEAD") == git(home, "rev-parse", "HEAD") and "merged" not in " ".join(said)
    assert (learner / "code.py").read_text() == "newest\n" and "return 1" in cells(learner / LAB)[1]


def test_what_cannot_be_done_is_refused_in_a_sentence_and_changes_nothing(
    home: Path, learner: Path, publish: Callable[[], None], tmp_path: Path
) -> None:
    change(learner / LAB, "stub", "def f():\n    return 1")
    before = git(learner, "rev-parse", "HEAD"), (learner / LAB).read_bytes()

    def refused(folder: Path, sentence: str) -> None:
        with pytest.raises(Refused, match=sentence) as told:
            update(folder)
        assert "\n" not in str(told.value)

    assert update(learner) == ["The course is as new as can be: nothing was changed."]
    home.rename(tmp_path / "gone")
    refused(learner, "cannot be reached, so nothing was changed")
    (learner / ".git/MERGE_HEAD").write_text(before[0] + "\n")
    refused(learner, "A merge of git is half done: finish it or type `git merge --abort`")
    (learner / ".git/MERGE_HEAD").unlink()
    git(learner, "remote", "remove", "origin")
    refused(learner, "does not know where this course comes from")
    assert before == (git(learner, "rev-parse", "HEAD"), (learner / LAB).read_bytes()) and kept(learner) == {}
    (tmp_path / "unpacked").mkdir()
    refused(tmp_path / "unpacked", "did not come by `git clone`")


def test_make_update_needs_no_environment(home: Path, learner: Path, publish: Callable[[], None]) -> None:
    change(learner / LAB, "stub", "def f():\n    return 1")
    change(home / LAB, "title", "# 01 · Better")
    publish()
    done = subprocess.run(
        ["make", "--no-print-directory", "update"], cwd=learner, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and f"{LAB} is new, and has what you had written in it." in done.stdout, done.stderr
    assert "return 1" in cells(learner / LAB)[1] and not (learner / ".venv").exists()
    git(learner, "remote", "set-url", "origin", str(home / "nowhere"))
    done = subprocess.run(["make", "update"], cwd=learner, capture_output=True, text=True, check=False)
    assert done.returncode and "cannot be reached" in done.stderr and "Traceback" not in done.stderr
