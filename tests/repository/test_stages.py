"""All stages of `make test` are run; at the end stands what was skipped, failed, or passed when it was tried again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from dealing import ROOT, STORED, group, length
from nbformat.v4 import new_code_cell, new_notebook

pytestmark = pytest.mark.extras  # a tool of authors; most of what it tells apart is `nightly`

PYTEST = (sys.executable, "-m", "pytest", "-q")
ONCE_MORE = ROOT / "tests" / "once_more"
FAILS_ONCE = "import pathlib; seen = pathlib.Path('{0}')\nif not seen.exists():\n    seen.touch(); 1 / 0"
SHAKY = "def test_shaky():\n    exec({!r})\n"


def _run(folder: Path, *command: str | Path, **variables: str) -> tuple[int, str]:
    """In an environment in which no make and no pytest around these tests has left anything."""
    own = ("MAKE", "MFLAGS", "PYTEST_", "AGAIN")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    done = subprocess.run(
        command,
        cwd=folder,
        env=kept | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout


def _stages(folder: Path, *stages: str, **recipes: str) -> tuple[int, list[str]]:
    """The stages of a project whose makefile has these recipes: the exit code, and the last part of what is said."""
    rules = "".join(f"{target}:\n\t{recipe}\n" for target, recipe in recipes.items())
    (folder / "Makefile").write_text(f"PYTEST = {ONCE_MORE} {' '.join(PYTEST)} -ra\n{rules}")
    code, text = _run(folder, ROOT / "tests" / "stages", *stages, AGAIN="1")
    last = text.rindex(f"=== {stages[-1]}\n")
    return code, text[last:].splitlines()


@pytest.mark.nightly
def test_without_being_asked_nothing_is_tried_again(tmp_path):
    (tmp_path / "test_shaky.py").write_text(SHAKY.format(FAILS_ONCE.format("seen")))
    code, text = _run(tmp_path, ONCE_MORE, *PYTEST)
    assert code == 1 and "once more" not in text


@pytest.mark.nightly
def test_what_failed_is_tried_again_alone_with_what_its_module_has_measured(tmp_path):
    (tmp_path / "test_shaky.py").write_text(
        "import pathlib, pytest\n"
        "@pytest.fixture(scope='module')\n"
        "def measured():\n"
        "    seen = pathlib.Path('seen')\n"
        "    if seen.exists(): return 2\n"
        "    seen.touch(); return 1\n"
        "@pytest.mark.parametrize('text', ['a b', 'x[1]::y'])\n"
        "def test_it(measured, text): assert measured == 2 or text == 'a b'\n"
    )
    code, text = _run(tmp_path, ONCE_MORE, *PYTEST, "-v", AGAIN="1")
    assert code == 0, text
    assert "test_it[x[1]::y]" in text and "1 passed" in text.partition("once more")[2]


@pytest.mark.nightly
@pytest.mark.parametrize(("stop", "workers"), [("pytest.exit('enough', returncode=3)", "0"), ("os._exit(9)", "1")])
def test_after_a_stop_the_third_test_has_not_passed(tmp_path, stop, workers):
    """It would have failed both times. (A worker that crashes is replaced, and the run comes to its end.)"""
    (tmp_path / "test_it.py").write_text(
        f"import os, pathlib, pytest\n{SHAKY.format(FAILS_ONCE.format('seen'))}"
        "def test_stops():\n"
        "    if not pathlib.Path('stopped').exists():\n"
        f"        pathlib.Path('stopped').touch(); {stop}\n"
        "def test_broken(): 1 / 0\n"
    )
    code, text = _run(tmp_path, ONCE_MORE, *PYTEST, "-n", workers, AGAIN="1")
    assert code != 0, text


@pytest.mark.nightly
def test_a_file_that_cannot_be_read_has_failed(tmp_path):
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    (tmp_path / "test_shaky.py").write_text(SHAKY.format(FAILS_ONCE.format("seen")))
    code, text = _run(tmp_path, ONCE_MORE, *PYTEST, "-n", "1", AGAIN="1")
    assert code != 0, text


def test_every_stage_is_run_and_all_that_failed_or_passed_the_second_time_stands_at_the_end(tmp_path):
    (tmp_path / "test_both.py").write_text(f"def test_broken(): 1 / 0\n{SHAKY.format(FAILS_ONCE.format('test'))}")
    for name, last in (("good", "x += 1"), ("shaky", FAILS_ONCE.format("notebook"))):
        notebook = new_notebook(cells=[new_code_cell("x = 1"), new_code_cell(last), new_code_cell("assert x")])
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    (tmp_path / "test_good.py").write_text("def test_it(): pass")
    code, said = _stages(
        tmp_path,
        *("lint", "tests", "notebooks", "last WORD=said"),
        lint="exit 7",
        tests="$(PYTEST) test_both.py test_good.py",
        notebooks="$(PYTEST) --nbval --nbval-current-env good.ipynb shaky.ipynb",
        last="@echo the word is $$WORD; $(PYTEST) missing.py",
    )
    assert code == 1 and "the word is said" in said, said
    end = said.index("FAILED test_both.py::test_broken")
    assert said[end + 1 : end + 4] == [
        "PASSED THE SECOND TIME, look for the race: shaky.ipynb",
        "PASSED THE SECOND TIME, look for the race: test_both.py::test_shaky",
        "",
    ]
    table = [re.fullmatch(r"(.+?) +\d+:\d\d  (\w+)", line) for line in said[end + 4 : -1]]
    assert [(line[1], line[2]) for line in table if line] == [
        *(("lint", "FAILED"), ("tests", "FAILED"), ("notebooks", "passed"), ("last WORD=said", "FAILED"))
    ]
    assert said[-1] == "Failed: lint, tests, last WORD=said"


@pytest.mark.nightly
def test_a_notebook_is_tried_again_as_a_whole_and_no_other(tmp_path):
    for name, last in (("good", "x += 1"), ("shaky", FAILS_ONCE.format("seen"))):
        notebook = new_notebook(cells=[new_code_cell("x = 1"), new_code_cell(last), new_code_cell("assert x")])
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    code, text = _run(
        tmp_path, ONCE_MORE, *PYTEST, "--nbval", "--nbval-current-env", "good.ipynb", "shaky.ipynb", AGAIN="1"
    )
    assert code == 0 and "3 passed" in text.partition("once more")[2], text


@pytest.mark.nightly
def test_what_was_skipped_stands_at_the_end_with_its_reason(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(3))\ndef test_it(n): pytest.skip('no such GPU')\n"
        "@pytest.mark.xfail\ndef test_known(): 1 / 0\n"
        "def test_good(): pass\n"
    )
    (tmp_path / "test_other.py").write_text("import pytest\npytest.skip('no such disk', allow_module_level=True)\n")
    code, said = _stages(tmp_path, "only", only="$(PYTEST)")
    assert code == 0 and said[-5:-3] == [
        *("SKIPPED [1] test_other.py:2: no such disk", "SKIPPED [3] test_it.py:3: no such GPU")
    ]
    assert said[-3] == "" and said[-1] == "All stages passed."


def test_when_nothing_fails_nothing_is_listed(tmp_path):
    code, said = _stages(tmp_path, "one", "two", one="@true", two="@true")
    assert code == 0 and said[1] == "" and len(said) == 5 and said[-1] == "All stages passed."


@pytest.mark.nightly
def test_the_tests_run_without_xdist():
    code, text = _run(ROOT, *PYTEST, "-p", "no:xdist", "--collect-only", "tests/repository/test_stages.py")
    assert code == 0 and "INTERNALERROR" not in text, text


def test_the_stored_durations_name_only_files_that_are_there():
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    assert len(stored) > 50 and [name for name in stored if not (ROOT / name.partition("::")[0]).is_file()] == []
    assert all(name == group(name) or "test_labs.py::" in name for name in stored)


def test_a_lab_is_a_group_of_its_own_and_the_longest_and_unknown_are_begun_first():
    labs = "tests/checks/test_labs.py"
    assert group(f"{labs}::test_a_wrong_answer[torchrun-rendezvous-wrong_1]") == f"{labs}::torchrun"
    assert group(f"{labs}::test_the_solution[torchrun]") == f"{labs}::torchrun"
    assert group(f"{labs}::test_every_module") == labs
    assert group("tests/draw/test_draw.py::test_it[torchrun]") == "tests/draw/test_draw.py"
    seconds = {"a.py": 3, "b.py": 5}
    assert sorted(("a.py::t", "b.py::t", "new.py::t"), key=lambda test: -length(test, seconds)) == [
        *("new.py::t", "b.py::t", "a.py::t")
    ]


def test_tests_are_dealt_out_by_stored_durations(tmp_path):
    """The course's own conftest.py, in a project with six files."""
    for name in ("conftest.py", "tests/support/dealing.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = tests/support\nmarkers = frameworks: some\n")
    names = [f"tests/test_{letter}.py" for letter in "abcdef"]
    for name in names:
        (tmp_path / name).write_text("".join(f"def test_{n}(): pass\n" for n in range(3)))
    (tmp_path / "tests/durations.json").write_text(json.dumps({name: n for n, name in enumerate(names)}))
    code, text = _run(tmp_path, *PYTEST, "-vv", "-n", "1", "--store-durations", PYTHONPATH=str(ROOT))
    assert code == 0 and "18 passed" in text, text
    begun = list(dict.fromkeys(re.findall(r"PASSED (tests/test_\w\.py)", text)))
    assert begun == names[::-1]
    stored = json.loads((tmp_path / "tests/durations.json").read_text())
    assert sorted(stored) == names and max(stored.values()) < 1, "what was measured now stands there"
