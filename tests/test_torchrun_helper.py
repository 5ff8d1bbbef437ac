"""Two torchrun agents as two nodes: what comes back, what a failure says, and that nothing is left running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from utils import torchrun
from utils.torchrun import AgentsFailed, AgentsTimeout, run_agents

ROOT = Path(__file__).resolve().parents[1]


def left_running(starter: int) -> list[str]:
    """Command lines of the processes that run_agents has started in the process with this pid."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(torchrun.MARK, "")
            if mark.startswith(f"{starter}-") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            pass
    return found


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text("import os, signal, subprocess, time\nrank = int(os.environ['RANK'])\n" + text)
        return path

    yield write
    assert left_running(os.getpid()) == []


def test_two_agents_are_two_nodes_and_all_ranks_get_the_same_sum():
    run = run_agents(ROOT / "scripts" / "who_am_i.py", nodes=2, per_node=2)
    assert [agent.exit_code for agent in run.agents] == [0, 0]
    assert [(worker.rank, worker.node, worker.local_rank) for worker in run.workers] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
    ]
    for worker in run.workers:
        assert f"node {worker.node}, local rank {worker.local_rank}: I am rank {worker.rank} of 4" in worker.output
        assert worker.output.endswith("the sum of all ranks is 6\n")
    assert [line.split(":")[0].strip() for line in repr(run).splitlines()] == [
        "agent of node 0 ended with exit code 0",
        "rank 0",
        "rank 1",
        "agent of node 1 ended with exit code 0",
        "rank 2",
        "rank 3",
    ]


def test_a_failing_worker_is_named_with_its_error_and_not_those_that_waited_for_it(script):
    program = script(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if rank == 1: raise ValueError('no such picture: cat.png')\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    with pytest.raises(AgentsFailed) as caught:
        run_agents(program, nodes=2, per_node=1)
    text = str(caught.value)
    assert text.startswith("program.py: rank 1 (node 1, local rank 0) failed with exit code 1:\n")
    assert "ValueError: no such picture: cat.png" in text
    assert len(caught.value.run.workers) == 2


def test_a_failure_ends_the_nodes_that_would_wait_for_ever(script):
    program = script("if rank == 0: raise SystemExit(3)\ntime.sleep(1000)\n")
    began = time.monotonic()
    with pytest.raises(AgentsFailed, match=r"rank 0 \(node 0, local rank 0\) failed with exit code 3"):
        run_agents(program, nodes=2, per_node=1, timeout=100)
    assert time.monotonic() - began < 60


def test_a_killed_worker_is_named_with_its_signal(script):
    program = script("if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)\n")
    with pytest.raises(AgentsFailed, match=r"rank 0 \(node 0, local rank 0\) was ended by SIGKILL"):
        run_agents(program, nodes=1, per_node=2)


def test_a_hanging_script_ends_at_the_time_out_with_all_that_it_started(script):
    program = script(
        "print('I am here', rank)\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(1000)\n"
    )
    began = time.monotonic()
    with pytest.raises(AgentsTimeout, match=r"program\.py was not finished after 15 s and was ended") as caught:
        run_agents(program, nodes=2, per_node=1, timeout=15)
    assert time.monotonic() - began < 40
    assert [agent.exit_code for agent in caught.value.run.agents] == [None, None]
    assert [worker.output for worker in caught.value.run.workers] == ["I am here 0\n", "I am here 1\n"]


def test_a_port_that_somebody_else_has_taken_is_no_failure(script, monkeypatch):
    free_port, asked = torchrun._free_port, []
    with socket.socket() as occupied:
        occupied.bind(("0.0.0.0", 0))
        occupied.listen()

        def first_taken_then_free() -> int:
            asked.append(len(asked))
            return free_port() if len(asked) > 1 else occupied.getsockname()[1]

        monkeypatch.setattr(torchrun, "_free_port", first_taken_then_free)
        run = run_agents(script("print('met')"), nodes=1, per_node=1)
    assert [worker.output for worker in run.workers] == ["met\n"]
    assert len(asked) == 2


def test_nothing_is_left_when_the_notebook_itself_is_killed(script, tmp_path):
    program = script(f"open(r'{tmp_path}/started.' + str(rank), 'w').close()\ntime.sleep(1000)\n")
    starter = f"from utils.torchrun import run_agents; run_agents({str(program)!r}, nodes=2, per_node=1, timeout=100)"
    notebook = subprocess.Popen([sys.executable, "-c", starter], cwd=ROOT)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("started.*"))) < 2:
        assert time.monotonic() < deadline and notebook.poll() is None
        time.sleep(0.1)
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.wait()
    deadline = time.monotonic() + 45
    while (left := left_running(notebook.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def test_a_script_that_does_not_exist_is_refused_at_once(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no script nowhere\.py"):
        run_agents(tmp_path / "nowhere.py")
