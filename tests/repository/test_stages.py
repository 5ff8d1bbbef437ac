"""Every stage is run; what fails is tried again only if it is listed; the end says what was skipped and what failed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from dealing import ROOT
from nbformat.v4 import new_code_cell, new_notebook

PYTEST = (sys.executable, "-m", "pytest", "-q", "-ra")
ONCE_MORE, STAGES = ROOT / "tests" / "once_more", ROOT / "tests" / "stages"
LIST = ROOT / "tests" / "may_fail_once.txt"
FAILS_ONCE = "import pathlib; seen = pathlib.Path('{0}')\nif not seen.exists():\n    seen.touch(); 1 / 0"
SHAKY = "def test_shaky():\n    exec({!r})\n"


def _run(folder: Path, *command: str | Path, listed: str = "") -> tuple[int, str]:
    """As CI does, in an environment in which no make and no pytest around these tests has left anything."""
    (folder / "listed.txt").write_text(listed)
    own = ("MAKE", "MFLAGS", "PYTEST_", "AGAIN")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment |= {"AGAIN": "1", "MAY_FAIL_ONCE": str(folder / "listed.txt")}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout


def test_the_list_is_short_and_names_tests_of_real_clocks_with_their_reasons() -> None:
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 15
    for line in lines:
        entry, _, reason = line.partition("  # ")
        assert len(reason) > 15 and (ROOT / entry.partition("::")[0]).is_file(), line
        assert not re.match("tests/(simgpu|checks|course|draw)/", entry), f"{entry} computes the same each time"


def test_what_is_not_listed_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "test_shaky.py").write_text(SHAKY.format(FAILS_ONCE.format("seen")))
    for listed in ("", "test_shak  # a prefix is no test\n", "test_shaky.py::test_other  # another test\n"):
        (tmp_path / "seen").unlink(missing_ok=True)
        code, text = _run(tmp_path, ONCE_MORE, *PYTEST, listed=listed)
        assert code == 1 and "once more" not in text
        assert "Not tried again" in text and "\ntest_shaky.py::test_shaky" in text.partition("Not tried again")[2]
    (tmp_path / "seen").unlink()
    assert _run(tmp_path, ONCE_MORE, *PYTEST, listed="test_shaky.py  # a real clock\n")[0] == 0


@pytest.mark.extras
def test_a_stop_and_a_file_that_cannot_be_read_have_failed(tmp_path: Path) -> None:
    everything = "test_it.py  # a real clock\ntest_broken.py  # a real clock\n"
    (tmp_path / "test_it.py").write_text(
        "import pathlib, pytest\n"
        "def test_stops():\n"
        "    if not pathlib.Path('stopped').exists():\n"
        "        pathlib.Path('stopped').touch(); pytest.exit('enough', returncode=3)\n"
        "def test_broken(): 1 / 0\n"
    )
    assert _run(tmp_path, ONCE_MORE, *PYTEST, listed=everything)[0] == 3
    (tmp_path / "test_it.py").unlink()
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    assert _run(tmp_path, ONCE_MORE, *PYTEST, listed=everything)[0] == 2


@pytest.mark.extras
def test_every_stage_is_run_and_the_end_says_what_failed_and_what_passed_the_second_time(tmp_path: Path) -> None:
    (tmp_path / "test_both.py").write_text(
        f"import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_skipped(n): pytest.skip('no such GPU')\n"
        f"{SHAKY.format(FAILS_ONCE.format('test'))}"
    )
    for name, last in (("good", "x += 1"), ("shaky", FAILS_ONCE.format("notebook"))):
        notebook = new_notebook(cells=[new_code_cell("x = 1"), new_code_cell(last), new_code_cell("assert x")])
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    stages = {
        "lint": "exit 7",
        "tests": f"{ONCE_MORE} {' '.join(PYTEST)} test_both.py",
        "notebooks": f"{ONCE_MORE} {' '.join(PYTEST)} --nbval --nbval-current-env good.ipynb shaky.ipynb",
        "last": "@echo the word is $$WORD",
    }
    rules = "".join(f"{target}:\n\t{recipe}\n" for target, recipe in stages.items())
    (tmp_path / "Makefile").write_text(rules)
    listed = "test_both.py::test_shaky  # a real clock\nshaky.ipynb  # a real clock\n"
    code, text = _run(tmp_path, STAGES, "lint", "tests", "notebooks", "last WORD=said", listed=listed)
    assert code == 1 and "the word is said" in text, text
    end = text[text.index("the word is said") :].splitlines()
    assert end[1:4] == [
        "PASSED THE SECOND TIME, look for the race: shaky.ipynb",
        "PASSED THE SECOND TIME, look for the race: test_both.py::test_shaky",
        "SKIPPED [3] test_both.py:3: no such GPU",
    ]
    table = [re.fullmatch(r"(.+?) +\d+:\d\d  (\w+)", line) for line in end]
    outcomes = {line[1]: line[2] for line in table if line}
    assert outcomes == {"lint": "FAILED", "tests": "passed", "notebooks": "passed", "last WORD=said": "passed"}
    assert end[-1] == "Failed: lint"
