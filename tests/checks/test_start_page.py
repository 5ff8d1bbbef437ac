"""The page on which `make lab` opens: what this learner has done, and where to go on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import checks
from checks.engine.exercises import all_exercises
from checks.start_page import page
from course import outline

LABS = outline.slugs("solutions")


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that makes these labs done."""

    def make(*slugs: str) -> None:
        results = {f"{one.lab}/{one.name}": "right" for one in all_exercises() if one.lab in slugs}
        (tmp_path / "progress.json").write_text(json.dumps({"version": 1, "results": results}))

    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))
    return make


def _first_line(text: str) -> str:
    return text.splitlines()[2]


def test_a_newcomer_is_led_to_the_first_lecture(done):
    assert _first_line(page()).startswith("**Begin:** [00 · ")
    assert "notebooks/00_start_here.ipynb" in _first_line(page())


def test_a_learner_is_led_to_the_first_lab_that_is_not_done(done):
    first, second, third = LABS[:3]
    done(first, third)
    shown = page()
    assert f"(notebooks/{outline.notebook(second).name})" in _first_line(shown)
    counts = {slug: sum(one.lab == slug for one in all_exercises()) for slug in LABS}
    for slug in LABS:
        right = counts[slug] if slug in (first, third) else 0
        assert f"[lab](labs/{outline.notebook(slug, 'labs').name}), {right} of {counts[slug]} done |" in shown
    assert f"({counts[first]} of {counts[first]} exercises done)" in shown, "the map says it too"


def test_all_done_is_no_trouble(done):
    done(*LABS)
    assert f"{len(all_exercises())} of {len(all_exercises())} exercises done" in page()


def test_every_lecture_and_lab_can_be_opened_from_it(done):
    targets = re.findall(r"\]\(([^)]+)\)", page())
    assert {path for path in targets if not (outline.ROOT / path).exists()} == set()
    assert {f"notebooks/{one.name}.ipynb" for one in outline.lectures()} <= set(targets)


def test_an_update_of_the_course_leaves_progress_alone():
    if shutil.which("git") is None or not (outline.ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    command = ["git", "check-ignore", ".progress.json", "START.md"]
    ignored = subprocess.run(command, cwd=outline.ROOT, capture_output=True, text=True, check=False).stdout.split()
    assert ignored == [".progress.json", "START.md"]


def test_a_learners_own_module_that_would_hide_the_courses_is_named_as_make_lab_begins(tmp_path):
    (tmp_path / "labs").mkdir()
    (tmp_path / "labs/utils.py").touch()
    command = [sys.executable, "-m", "checks.start_page", "START.md"]
    environment = os.environ | {"PYTHONPATH": str(Path(checks.__file__).parents[1])}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stderr
    assert "labs/: The utils.py of this folder has the name of a package that cells on ranks need" in said
    assert (tmp_path / "START.md").exists()
