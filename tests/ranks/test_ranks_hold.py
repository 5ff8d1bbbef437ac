"""What one world meets does not concern the others, and nothing of ours reaches a stranger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from kernel_support import Kernel
from ranks_support import eventually, gone

from utils.ranks import BadRequest, RanksInterrupted, World, starters
from utils.ranks.processes import InterruptFlag

DAEMON = (  # its parent ends at once, and its group and session are its own
    "import subprocess\n"
    "say = 'sleep 100 >/dev/null 2>&1 & echo $!'\n"
    "daemon = int(subprocess.run(['setsid', 'sh', '-c', say], capture_output=True, text=True).stdout)"
)


@pytest.fixture
def faults(tmp_path, monkeypatch):
    """A folder in which a file lets the zygote, a fresh one, meet a fault: see ``zygote_faults``."""
    monkeypatch.setenv("ZYGOTE_FAULTS", str(tmp_path))
    starters.shut_down()
    yield tmp_path
    starters.shut_down()


def test_a_fork_that_the_system_refuses_fails_its_world_and_no_other(faults):
    starters.starter("fork").preload("tests.support.zygote_faults")
    with World(1, start="fork") as world:
        world.run_cell("kept = 5")
        (faults / "no room").touch()
        with pytest.raises(BadRequest, match="rank 0 of 3 could not be started: Resource temporarily unavailable"):
            World(3, start="fork")
        assert world.run_cell("kept") == {0: "5"}
        (faults / "no room").unlink()
        with World(2, start="fork") as other:
            assert other.run_cell("rank") == {0: "0", 1: "1"}


def test_the_end_of_a_world_leaves_the_daemons_of_others_alone():
    with World(1, start="fork") as world:
        world.run_cell(DAEMON)
        (daemon,) = world["daemon"]
        for _ in range(2):
            World(1, start="fork").close()
        with World(1, start="fork") as other:
            other.run_cell(DAEMON)
            (another,) = other["daemon"]
        assert eventually(lambda: gone([another]))
        assert not gone([daemon])
    assert eventually(lambda: gone([daemon]))


def test_daemons_end_with_the_notebook_also_when_that_is_killed():
    with Kernel() as kernel:
        kernel.run("%load_ext utils")
        kernel.run(f"%%ranks -n 2\n{DAEMON}")
        daemons = [int(pid) for pid in kernel.text("%ranks pull daemon").strip("[]\n").split(",")]
        assert not gone(daemons[:1]) and not gone(daemons[1:])
        kernel.kill()
        assert eventually(lambda: gone(daemons))


def test_an_interrupt_does_not_wait_for_the_process_that_still_imports_torch(faults):
    (faults / "busy").touch()
    starters.starter("fork").preload("tests.support.zygote_faults")
    stop = threading.Timer(1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    rescue = threading.Timer(40, (faults / "busy").unlink)  # else a failure would take two minutes
    stop.start(), rescue.start()
    try:
        with pytest.raises(RanksInterrupted, match="the start of the ranks was interrupted"):
            World(2, start="fork")
        assert (faults / "busy").exists()
    finally:
        rescue.cancel()
        (faults / "busy").unlink(missing_ok=True)
    with World(1, start="fork") as world:
        assert world.run_cell("rank") == {0: "0"}


def test_a_spawned_rank_is_signalled_only_while_its_number_is_its_own(monkeypatch):
    """After it was waited for, a process's number may be a stranger's."""
    spawner = starters.Spawner()
    program = [sys.executable, "-c", "import os; os.setpgid(0, 0)"]
    monkeypatch.setattr(starters, "_python", lambda *_: subprocess.Popen(program))
    monkeypatch.setattr(spawner, "_tell_guardian", lambda *_: None)
    free = []
    killpg = os.killpg

    def watched(pid, number):
        free.append(not psutil.pid_exists(pid))
        killpg(pid, number)

    monkeypatch.setattr(os, "killpg", watched)
    pid = spawner.start([], lambda: False)
    assert eventually(lambda: spawner.exit_code(pid) is not None)
    assert [spawner.exit_code(pid) for _ in range(3)] == [0, 0, 0]
    spawner.forget(pid)
    assert free == [False]


def test_an_interrupt_that_comes_too_late_reaches_nobody():
    flag = InterruptFlag()
    flag.close()
    stranger = os.pipe()  # it gets the numbers that the flag's had
    os.set_blocking(stranger[0], False)
    try:
        flag.strike()
        with pytest.raises(BlockingIOError):
            os.read(stranger[0], 1)
    finally:
        for fd in stranger:
            os.close(fd)


def test_a_world_whose_background_thread_cannot_start_is_not_busy(monkeypatch):
    with World(1) as world:

        def no_room(_):
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_room)
            for submit in (lambda: world.submit_cell("1"), lambda: world.submit(abs, 1)):
                with pytest.raises(RuntimeError, match="can't start new thread"):
                    submit()
        assert world.run_cell("rank") == {0: "0"}
