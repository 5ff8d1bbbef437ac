"""What a learner has done is remembered, and shown, in any state of the file and of the course."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import toy_checks as check

from checks import memory as memory_module
from checks import progress
from checks.engine.exercises import exercises_in

TOY = exercises_in(check)


@pytest.fixture(autouse=True)
def progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    return path


def test_nothing_tried_is_all_not_started():
    overview = progress(TOY)
    assert repr(overview).splitlines() == [
        "toy  0/3",
        "  ○ Add two numbers  ●○○    5 min",
        "  ○ Mean over ranks  ●●○   10 min",
        "  ○ There and back   ●●●   15 min",
        "0 of 3 exercises done, about 30 minutes to go",
    ]


def test_results_are_remembered_and_a_fresh_lab_erases_nothing(progress_file):
    def unwritten(a, b):
        raise NotImplementedError

    check.add(lambda a, b: a + b)
    check.there_and_back(lambda x: x, lambda x: x[1:])
    check.add(unwritten)
    signs = [line.split()[0] for line in repr(progress(TOY)).splitlines()[1:4]]
    assert signs == ["✓", "○", "✗"]
    assert "1 of 3 exercises done" in repr(progress(TOY))
    assert json.loads(progress_file.read_text())["results"] == {"toy/add": "right", "toy/there_and_back": "wrong"}
    assert [path.name for path in progress_file.parent.iterdir()] == [progress_file.name]


def test_results_are_remembered_where_a_file_system_has_no_locks(monkeypatch):
    """Such as a folder of Windows, seen from WSL2, may be."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    check.add(lambda a, b: a + b)
    assert "1 of 3 exercises done" in repr(progress(TOY))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"results": 3}', '{"results": {"toy/add": "strange", "gone/x": 1}}']
)
def test_a_broken_or_outdated_file_is_no_trouble(progress_file, content):
    progress_file.write_text(content)
    assert "0 of 3" in repr(progress(TOY))
    check.add(lambda a, b: a + b)
    assert "1 of 3" in repr(progress(TOY))


def test_exercises_that_changed_or_vanished_are_no_trouble():
    check.add(lambda a, b: a + b)
    assert "1 of 1" in repr(progress(TOY[:1]))
    assert "0 of 2" in repr(progress(TOY[1:]))


def test_two_notebooks_may_write_at_once(progress_file):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: memory_module.remember("toy", f"e{number}", "right"), range(40)))
    assert len(memory_module.recall()) == 40


def test_a_folder_that_cannot_be_written_is_no_trouble(monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", "/dev/null/progress.json")
    assert check.add(lambda a, b: a + b)
    assert "0 of 3" in repr(progress(TOY))


def test_running_the_solutions_counts_for_nobody(monkeypatch, tmp_path):
    (tmp_path / "solutions").mkdir()
    monkeypatch.setattr(memory_module, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path / "solutions")
    check.add(lambda a, b: a + b)
    assert memory_module.recall() == {}


def test_the_overview_of_the_course_works_in_any_state():
    assert "exercises done" in repr(progress())
