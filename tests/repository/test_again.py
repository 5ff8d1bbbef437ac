"""What fails once is tried again where that is asked for; what fails twice, or does not come to its end, has failed.

All stages of `make test` are run, and what failed in any of them is said at the end.
"""

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

pytestmark = pytest.mark.extras  # a tool of authors

AGAIN = ROOT / "tests" / "again.py"
STAGES = ROOT / "tests" / "stages.py"
FAILS_ONCE = "import pathlib; seen = pathlib.Path('seen')\nif not seen.exists():\n    seen.touch(); 1 / 0"


def _run(folder: Path, *arguments: str) -> tuple[int, str]:
    return _python(folder, AGAIN, *arguments)


def _python(folder: Path, *command: str | Path) -> tuple[int, str]:
    """In an environment in which no make and no pytest around these tests has left anything."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_notebook_that_fails_once_is_run_once_more_whole_and_alone_and_named(tmp_path):
    for name, last in (("good", "x += 1"), ("shaky", FAILS_ONCE)):
        notebook = new_notebook(cells=[new_code_cell("x = 1"), new_code_cell(last), new_code_cell("assert x")])
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    code, text = _run(tmp_path, "--again", "good.ipynb", "shaky.ipynb", "--", "-q", "--nbval", "--nbval-current-env")
    assert code == 0, text
    assert "run once more:\n    shaky.ipynb\n" in text and "Passed the second time" in text
    assert "3 passed" in text.partition("run once more")[2], "the whole notebook, and only this one"


def test_without_being_asked_nothing_is_tried_again(tmp_path):
    (tmp_path / "test_shaky.py").write_text(f"def test_it():\n    exec({FAILS_ONCE!r})\n")
    code, text = _run(tmp_path, "test_shaky.py", "--", "-q")
    assert code == 1 and "once more" not in text


def test_what_fails_twice_has_failed(tmp_path):
    (tmp_path / "test_broken.py").write_text("def test_it(): 1 / 0\ndef test_other(): pass\n")
    code, text = _run(tmp_path, "--again", "test_broken.py", "--", "-q")
    assert code == 1 and "Failed twice:\n    test_broken.py::test_it\n" in text


def test_what_passed_the_second_time_is_told_from_what_failed_twice(tmp_path):
    (tmp_path / "test_both.py").write_text(f"def test_broken(): 1 / 0\ndef test_shaky():\n    exec({FAILS_ONCE!r})\n")
    code, text = _run(tmp_path, "--again", "test_both.py", "--", "-q")
    assert code == 1 and "Failed twice:\n    test_both.py::test_broken\n" in text
    assert "Passed the second time: look for the race:\n    test_both.py::test_shaky\n" in text


def test_a_test_is_tried_again_alone_with_what_its_module_has_measured(tmp_path):
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
    code, text = _run(tmp_path, "--again", "test_shaky.py", "--", "-q")
    assert code == 0, text
    assert "test_it[x[1]::y]" in text and "1 passed" in text.partition("run once more")[2]


def test_many_failures_are_no_accident(tmp_path):
    (tmp_path / "test_broken.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(11))\ndef test_it(n): assert False\n"
    )
    code, text = _run(tmp_path, "--again", "test_broken.py", "--", "-q")
    assert code == 1 and "once more" not in text


def test_what_cannot_be_run_at_all_fails(tmp_path):
    assert _run(tmp_path, "--again", "missing.ipynb", "--", "-q")[0] != 0


STOPS = {
    "a stop on request": "pytest.exit('enough', returncode=3)",
    "a stop with the code of failed tests": "pytest.exit('enough', returncode=1)",
    "a crash": "os._exit(9)",
}


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "a worker"])
@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_a_run_that_did_not_come_to_its_end_is_not_tried_again(tmp_path, stop, workers):
    """The third test would have failed both times, and nobody would know."""
    (tmp_path / "test_it.py").write_text(
        "import os, pathlib, pytest\n"
        f"def test_shaky():\n    exec({FAILS_ONCE!r})\n"
        "def test_stops():\n"
        "    if not pathlib.Path('stopped').exists():\n"
        f"        pathlib.Path('stopped').touch(); {stop}\n"
        "def test_broken(): 1 / 0\n"
    )
    code, text = _run(tmp_path, "--again", "test_it.py", "--", "-q", "-p", "no:cacheprovider", *workers)
    assert code != 0 and "once more" not in text, text


@pytest.mark.parametrize(
    "options", [("--continue-on-collection-errors",), ("-n", "1")], ids=["one process", "a worker"]
)
def test_a_file_that_cannot_be_read_is_no_accident(tmp_path, options):
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    (tmp_path / "test_shaky.py").write_text(f"def test_it():\n    exec({FAILS_ONCE!r})\n")
    code, text = _run(tmp_path, "--again", "test_broken.py", "test_shaky.py", "--", "-q", *options)
    assert code != 0 and "once more" not in text, text


def test_after_the_first_failure_of_x_the_rest_is_unknown(tmp_path):
    (tmp_path / "test_it.py").write_text(f"def test_shaky():\n    exec({FAILS_ONCE!r})\ndef test_broken(): 1 / 0\n")
    code, text = _run(tmp_path, "--again", "test_it.py", "--", "-q", "-x")
    assert code != 0 and "once more" not in text, text


def test_what_failed_can_be_run_again_by_hand_with_lf(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(f"def test_shaky():\n    exec({FAILS_ONCE!r})\ndef test_good(): pass\n")
    assert _run(tmp_path, "test_it.py", "--", "-q")[0] == 1
    code, text = _python(tmp_path, "-m", "pytest", "-v", "--lf")
    assert code == 0 and "test_shaky PASSED" in text and "test_good PASSED" not in text


def test_the_tests_run_without_xdist():
    code, text = _python(
        ROOT, "-m", "pytest", "-q", "-p", "no:xdist", "--collect-only", "tests/repository/test_again.py"
    )
    assert code == 0 and "INTERNALERROR" not in text, text


def _stages(folder: Path, *stages: str, **recipes: str) -> tuple[int, str]:
    """The stages of a project whose makefile has these recipes."""
    rules = "".join(f"{target}:\n\t{recipe}\n" for target, recipe in recipes.items())
    (folder / "Makefile").write_text(f"RUN = {sys.executable} {AGAIN}\n{rules}")
    return _python(folder, STAGES, *stages)


def test_every_stage_is_run_and_all_that_failed_stands_at_the_end(tmp_path):
    (tmp_path / "test_shaky.py").write_text(f"def test_it():\n    exec({FAILS_ONCE!r})\n")
    (tmp_path / "test_broken.py").write_text("def test_it(): 1 / 0\n")
    code, text = _stages(
        tmp_path,
        *("lint", "broken", "shaky", "last WORD=said"),
        lint="exit 7",
        broken="$(RUN) --again test_broken.py -- -q",
        shaky="$(RUN) --again test_shaky.py -- -q",
        last="echo the word is $$WORD; $(RUN) missing.py -- -q",
    )
    assert code == 1 and "the word is said" in text, text
    end = text.partition("=== last")[2].partition("\nlint ")[2]
    assert re.findall(r"(\w+) +\d+:\d\d  (\w+)$", f"lint {end}", re.MULTILINE) == [
        *(("lint", "FAILED"), ("broken", "FAILED"), ("shaky", "passed"), ("said", "FAILED"))
    ]
    assert "Failed twice:\n    test_broken.py::test_it\n" in end
    assert "Passed the second time: look for the race:\n    test_shaky.py::test_it\n" in end
    assert "did not come to its end:\n    (no test)\n" in end
    assert text.endswith("Failed: lint, broken, last WORD=said\n")


def test_what_was_skipped_stands_at_the_end_with_its_reason(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(3))\ndef test_it(n): pytest.skip('no such GPU')\n"
        "@pytest.mark.xfail\ndef test_known(): 1 / 0\n"
        "def test_good(): pass\n"
    )
    (tmp_path / "test_other.py").write_text("import pytest\npytest.skip('no such disk', allow_module_level=True)\n")
    code, text = _stages(tmp_path, "only", only="$(RUN) test_it.py test_other.py -- -q")
    assert code == 0, text
    assert text.endswith("passed\nSkipped:\n    1 × no such disk\n    3 × no such GPU\nAll stages passed.\n")


def test_when_nothing_fails_nothing_is_listed(tmp_path):
    code, text = _stages(tmp_path, "one", "two", one="true", two="true")
    assert code == 0 and text.endswith("passed\nAll stages passed.\n") and "second time" not in text


def test_a_stage_that_would_begin_too_late_is_left_out_and_listed(tmp_path):
    stages = {"one": "sleep 1", "two": "true"}
    code, text = _stages(tmp_path, "--minutes", "0.01", *stages, **stages)
    assert code == 0 and "=== two" not in text
    assert text.endswith("Left out, for 0.01 minutes were over: two\nAll stages that ran passed.\n")
    code, text = _stages(tmp_path, "--minutes", "0.01", *stages, **stages | {"one": "sleep 1; exit 7"})
    assert code == 1 and text.endswith("two\nFailed: one\n")


def test_the_stored_durations_name_only_files_that_are_there():
    stages = json.loads(STORED.read_text(encoding="utf-8"))
    stored = [name for stage in stages.values() for name in stage]
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
    for name in ("conftest.py", "support/dealing.py"):
        (tmp_path / "tests" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "tests" / name).write_text((ROOT / "tests" / name).read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = tests/support\nmarkers = frameworks: some\n")
    names = [f"tests/test_{letter}.py" for letter in "abcdef"]
    for name in names:
        (tmp_path / name).write_text("".join(f"def test_{n}(): pass\n" for n in range(3)))
    (tmp_path / "tests/durations.json").write_text(json.dumps({"": {name: n for n, name in enumerate(names)}}))
    code, text = _python(tmp_path, "-m", "pytest", "-v", "-n", "1", "--dist", "loadfile")
    assert code == 0 and "18 passed" in text, text
    begun = list(dict.fromkeys(re.findall(r"PASSED (tests/test_\w\.py)", text)))
    assert begun == names[::-1]
