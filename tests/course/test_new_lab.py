"""A lab that is made anew works as it is: check, answers, the unsolved lab; what is there is never overwritten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from course_copy import copy_course, run_there

from course import new, outline
from course.__main__ import main

pytestmark = pytest.mark.extras  # a tool of authors; what copies the course is `nightly`

ROOT = outline.ROOT


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the course with a new lecture, toys, which has no lab yet."""
    parts = ("notebooks", "labs", "solutions", "scripts", "utils", "simgpu", "checks", "lessons", "course", "tests")
    copy = copy_course(tmp_path_factory.mktemp("course"), *parts)
    assert main(["insert", "toys", "--at", "3", "--root", str(copy)]) == 0
    return copy


@pytest.mark.nightly
def test_a_new_lab_works_as_it_is_and_is_not_made_twice(course, capsys):
    assert main(["lab", "toys", "--root", str(course)]) == 0
    said = capsys.readouterr().out
    assert "made checks/labs/toys/averaging.py" in said and "made labs/03_toys.ipynb" in said
    run_there(course, ["-m", "course", "execute", "solutions/03_toys.ipynb"])
    pytest_there = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/checks/test_labs.py"]
    run_there(course, [*pytest_there, "-k", "toys or labs_are or belongs"])
    run_there(course, ["-m", "ruff", "check", "--no-cache", "checks/labs/toys", "tests/answers/toys"])
    run_there(course, ["-m", "ruff", "format", "--no-cache", "--check", "checks/labs/toys", "tests/answers/toys"])
    before = (course / "checks/labs/toys/averaging.py").read_bytes()
    assert main(["lab", "toys", "--root", str(course)]) == 2
    assert "The lab toys is begun" in capsys.readouterr().err
    assert (course / "checks/labs/toys/averaging.py").read_bytes() == before


@pytest.mark.nightly
@pytest.mark.parametrize(("slug", "said"), [("nothing", "no lecture nothing"), ("torchrun", "torchrun is begun")])
def test_a_lab_for_no_lecture_or_beside_another_is_refused(course, capsys, slug, said):
    assert main(["lab", slug, "--root", str(course)]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_the_check_that_contributing_shows_is_the_one_that_is_made():
    shown = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("### A check in 30 lines")[1]
    code = shown.split("```python\n")[1].split("```")[0]
    made = re.sub(
        r": (dict|Callable)[\w.\[\], ]*(?=, mean|\))| -> [^:]*(?=:)",
        "",
        new.filled("check.py.txt", SLUG="slug"),
    )
    lines = {line.strip() for line in made.splitlines()}
    assert [line for line in code.splitlines() if line.strip() not in lines] == []
