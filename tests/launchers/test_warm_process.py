"""``python`` without the wait for an import: programs in copies of a process that has imported what they need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lessons.launchers import warm_process

pytestmark = pytest.mark.frameworks
LATE = 240.0  # seconds


@pytest.fixture(scope="module")
def warm_python() -> Iterator[str]:
    with warm_process.python(["decimal", "numpy.random"], {**os.environ}) as python:
        yield str(python)


def test_a_warm_python_has_imported_what_it_was_told_and_gets_what_it_is_given(warm_python, tmp_path):
    program = tmp_path / "tells.py"
    program.write_text(
        "import os, sys\n"
        "print('decimal' in sys.modules, sys.argv[1:], sys.path[0], os.environ['HERE'], os.getcwd(), input())\n"
        "print('words', file=sys.stderr)\n"
        "os.write(int(sys.argv[1]), b'through a file of the launcher')\n"
        "sys.exit(7)\n",
        encoding="utf-8",
    )
    read, write = os.pipe()
    ran = subprocess.run(
        [warm_python, "-u", program, str(write)],
        env={**os.environ, "HERE": "yes"},
        cwd=tmp_path,
        input="hello\n",
        capture_output=True,
        text=True,
        pass_fds=[write],
    )
    assert ran.stdout == f"True ['{write}'] {tmp_path} yes {tmp_path} hello\n"
    assert (ran.returncode, ran.stderr) == (7, "words\n")
    assert os.read(read, 100) == b"through a file of the launcher"
    os.close(read), os.close(write)


def test_programs_of_a_warm_python_draw_different_numbers(warm_python, tmp_path):
    program = tmp_path / "draws.py"
    program.write_text("import numpy\nprint(numpy.random.rand())\n", encoding="utf-8")
    drawn = [subprocess.run([warm_python, program], capture_output=True, text=True).stdout for _ in range(2)]
    assert float(drawn[0]) != float(drawn[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_of_a_warm_python_ends_with_the_process_that_stands_for_it(warm_python, tmp_path, number):
    program = tmp_path / "sleeps.py"
    program.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n", encoding="utf-8")
    with subprocess.Popen([warm_python, program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        sleeper = psutil.Process(int(process.stdout.readline()))
        process.send_signal(number)
        assert process.wait(LATE) == -number
    sleeper.wait(LATE)


def test_programs_end_with_the_warm_python_and_with_whoever_has_started_it(tmp_path):
    program = tmp_path / "sleeps.py"
    program.write_text(
        "import os, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        "print(os.getpid(), child.pid, flush=True)\nchild.wait()\n",
        encoding="utf-8",
    )

    def sleepers(python: str | Path, into: subprocess.Popen[str] | None = None) -> list[psutil.Process]:
        process = into or subprocess.Popen([python, program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]

    with warm_process.python([], {**os.environ}) as python:
        left = sleepers(python)
    assert psutil.wait_procs(left, timeout=LATE)[1] == []
    starter = (
        "import os, subprocess, sys\nfrom lessons.launchers import warm_process\n"
        "with warm_process.python([], {**os.environ}) as python: subprocess.run([python, sys.argv[1]])\n"
    )
    with subprocess.Popen([sys.executable, "-c", starter, program], stdout=subprocess.PIPE, text=True) as notebook:
        left = sleepers("", notebook)
        notebook.kill()
    assert psutil.wait_procs(left, timeout=LATE)[1] == []


def test_a_warm_python_runs_what_is_no_program_as_ever_and_shows_an_error(warm_python, tmp_path):
    assert subprocess.run([warm_python, "-c", "print(1)"], capture_output=True, text=True).stdout == "1\n"
    program = tmp_path / "fails.py"
    program.write_text("raise ValueError('on purpose')\n", encoding="utf-8")
    ran = subprocess.run([warm_python, program], capture_output=True, text=True)
    assert ran.returncode == 1 and ran.stderr.endswith("ValueError: on purpose\n")
