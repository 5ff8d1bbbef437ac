"""scripts/frameworks with their launchers: what the lecture does not show (it runs each, whole and dying)."""

from __future__ import annotations

import os

import psutil
import pytest

from lessons.launchers import extras, frameworks, processes

pytestmark = pytest.mark.frameworks
LATE = 240.0  # seconds; each run takes three to six on a quiet machine


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(bool(extras.missing(module)), reason=extras.sentence([module]))


def no_process_is_left() -> bool:
    left = processes.marked(frameworks.MARK, f"{os.getpid()}-")
    return [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("with_ddp.py", 1, "SIGKILL"),
        pytest.param("with_mpi.py", 9, "BAD TERMINATION", marks=needs("mpi4py")),
        pytest.param("with_horovod.py", 1, "Process name: 1\nExit code: 137", marks=needs("horovod")),
    ],
)
def test_when_a_worker_dies_all_end_and_no_process_is_left(program, code, words):
    ran = frameworks.run(program, kill_at=10, timeout=LATE)
    assert (ran.code, ran.files) == (code, {}) and words in ran.launcher, ran
    with pytest.raises(RuntimeError, match="has not finished its training"):
        ran.losses  # noqa: B018
    assert no_process_is_left()


@needs("mpi4py")
def test_a_launcher_that_takes_too_long_is_ended(tmp_path):
    program = tmp_path / "mpi_sleeps.py"
    program.write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n", encoding="utf-8")
    ran = frameworks.run(program, timeout=15)
    assert ran.code is None and [worker.output for worker in ran.workers] == ["here\n"] * 2
    assert no_process_is_left()


def test_an_edited_copy_differs_in_what_was_asked_and_a_line_of_which_nothing_is_left_goes(tmp_path):
    changes = {"parameter.grad /= workers": "", "lr=LEARNING_RATE": "lr=1.0"}
    copy = frameworks.edited("with_mpi.py", changes, tmp_path).read_text(encoding="utf-8").splitlines()
    lines = (frameworks.SCRIPTS / "with_mpi.py").read_text(encoding="utf-8").splitlines()
    gone, new = [line for line in lines if line not in copy], [line for line in copy if line not in lines]
    assert len(copy) == len(lines) - 1
    assert [line.strip() for line in gone][1] == "parameter.grad /= workers" and "lr=1.0" in new[0] and len(new) == 1


@pytest.mark.parametrize("text", ["no such line", "import"])
def test_a_change_that_does_not_fit_once_is_refused(text, tmp_path):
    with pytest.raises(ValueError, match="times, not once"):
        frameworks.edited("with_mpi.py", {text: ""}, tmp_path)
