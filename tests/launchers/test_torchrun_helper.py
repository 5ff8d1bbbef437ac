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

from lessons.launchers import processes, torchrun
from lessons.launchers.torchrun import AgentsFailed, AgentsTimeout, run_agents

pytestmark = pytest.mark.extras  # real torchrun, job after job; the lecture on it runs some in every `make test`

ROOT = Path(__file__).resolve().parents[2]
LONG = 240.0  # seconds; a machine that does much else at the same time is slow


def left_running(starter: int) -> list[str]:
    """Command lines of the processes that run_agents has started in the process with this pid."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(torchrun.agent_group.MARK, "")
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
    assert text.startswith("program.py: rank 1 (node 1, local rank 0) ended with exit code 1:\n")
    assert "ValueError: no such picture: cat.png" in text
    assert len(caught.value.run.workers) == 2


def test_a_failure_ends_the_nodes_that_would_wait_for_ever(script):
    program = script("if rank == 0: raise SystemExit(3)\ntime.sleep(1000)\n")
    with pytest.raises(AgentsFailed, match=r"rank 0 \(node 0, local rank 0\) ended with exit code 3"):
        run_agents(program, nodes=2, per_node=1, timeout=LONG)  # (at the time-out the error is another)


def test_a_killed_worker_is_named_with_its_signal(script):
    program = script("if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)\n")
    with pytest.raises(AgentsFailed, match=r"rank 0 \(node 0, local rank 0\) was killed by SIGKILL"):
        run_agents(program, nodes=1, per_node=2)


def test_a_hanging_script_ends_at_the_time_out_with_all_that_it_started(script):
    program = script(
        "print('I am here', rank)\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(1000)\n"
    )
    with torchrun.agents(program, nodes=1, per_node=2) as agents:
        agents.start(0)
        assert {agents.wait_for("I am here", LONG) for _ in range(2)} == {"I am here 0", "I am here 1"}
        with pytest.raises(AgentsTimeout, match=r"program\.py was not finished after 0\.5 s and was ended\.") as caught:
            agents.wait(0.5)
        assert left_running(os.getpid()) == []
    assert [agent.exit_code for agent in caught.value.run.agents] == [None]
    assert [worker.output for worker in caught.value.run.workers] == ["I am here 0\n", "I am here 1\n"]


def test_a_port_that_somebody_else_has_taken_is_no_failure(script, monkeypatch):
    free_ports, asked = torchrun.agent_group.free_ports, []
    with socket.socket() as occupied:
        occupied.bind(("0.0.0.0", 0))
        occupied.listen()

        def first_taken_then_free(count: int) -> list[int]:
            asked.append(len(asked))
            return free_ports(count) if len(asked) > 1 else [occupied.getsockname()[1]]

        monkeypatch.setattr(torchrun.agent_group, "free_ports", first_taken_then_free)
        run = run_agents(script("print('met')"), nodes=1, per_node=1)
    assert [worker.output for worker in run.workers] == ["met\n"]
    assert len(asked) == 2


def test_nothing_is_left_when_the_notebook_itself_is_killed(script, tmp_path):
    program = script(f"open(r'{tmp_path}/started.' + str(rank), 'w').close()\ntime.sleep(1000)\n")
    starter = "from lessons.launchers.torchrun import run_agents as run"
    starter += f"; run({str(program)!r}, nodes=1, per_node=2, timeout={LONG})"
    notebook = subprocess.Popen([sys.executable, "-c", starter], cwd=ROOT)
    deadline = time.monotonic() + LONG
    while len(list(tmp_path.glob("started.*"))) < 2:
        assert time.monotonic() < deadline and notebook.poll() is None
        time.sleep(0.1)
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.wait()
    deadline = time.monotonic() + LONG
    while (left := left_running(notebook.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def test_agents_start_when_told_and_what_is_killed_is_told_from_what_failed(script):
    program = script("print('rank', rank, 'of', os.environ['WORLD_SIZE'], 'is here', flush=True)\ntime.sleep(1000)\n")
    options = {"nodes": 2, "per_node": 1, "min_nodes": 1, "rendezvous": "c10d", "max_restarts": 1}
    options["rdzv_conf"] = {"last_call_timeout": 1}  # who comes later joins later
    with torchrun.agents(program, **options) as agents:
        agents.start(0)
        assert agents.wait_for("is here", LONG) == "rank 0 of 1 is here"
        agents.start(1)  # all workers start anew
        assert {agents.wait_for("of 2 is here", LONG) for _ in range(2)} == {f"rank {k} of 2 is here" for k in range(2)}
        before = len(agents.run.agents[0].earlier)  # on a busy machine agent 1 may miss a last call, and 0 starts alone
        agents.kill(1)
        rank = agents.run.agents[0].workers[0].rank
        (worker,) = processes.marked(torchrun.agent_group.MARK, agents._mark, RANK=str(rank))
        worker.kill()
        deadline = time.monotonic() + LONG
        while (last := agents.run.agents[0].workers[0]).start == before or "rank 0 of 1 is here" not in last.output:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert len(left_running(os.getpid())) == 2  # agent 0 and its worker
        with pytest.raises(ValueError, match="no agent of node 1 is running"):
            agents.kill(1)
        with pytest.raises(AgentsTimeout, match=r"after 0\.1 s no worker had printed 'good bye'"):
            agents.wait_for("good bye", 0.1)
        first = agents.run.agents[0]
        assert [worker.start for worker in first.earlier] == list(range(before + 1))
        assert [worker.world_size for worker in first.earlier] == [1] * before + [2]
        assert agents.run.agents[1].exit_code is None
        agents.kill(0)
        assert [agent.exit_code for agent in agents.wait().agents] == [None, None]


def test_a_restarted_worker_s_outputs_are_all_kept(script):
    program = script(
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('attempt', attempt, flush=True)\n"
        "if attempt == '0': os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = run_agents(program, nodes=1, per_node=1, max_restarts=1)
    assert [(worker.start, worker.output) for worker in run.all_workers] == [(0, "attempt 0\n"), (1, "attempt 1\n")]
    assert "rank 0 (start 1): attempt 1" in repr(run)
