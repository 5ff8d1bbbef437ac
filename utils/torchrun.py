"""Several torchrun agents on this machine, one for each pretended node: what a cluster does, in a notebook cell.

``run_agents("scripts/who_am_i.py", nodes=2, per_node=2)`` starts two real agents. Each starts two workers; all four
meet through the port of the first agent, as they would across a network. Output is collected per worker and comes back
in rank order. Whatever happens, no process is left: every one that is started here carries a mark in its environment,
and at the end whoever still carries it is killed.

``python -m utils.torchrun …`` is ``torchrun …``, except that it ends when the process that started it does.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

DEFAULT_TIMEOUT = 60.0
MARK = "COURSE_AGENTS"  # this environment variable holds the pid of whoever started it all, and a random part
#: Seconds that other agents get to end by themselves when one has failed; their workers often wait for the dead one.
GRACE = 3.0
_STARTS = 3  # a free port may be taken by somebody else before the first agent gets it
_LAST_LINES = 12
_PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
_FAILED = re.compile(r"rank +: (\d+) \(local_rank: (\d+)\)\n +exitcode +: (-?\d+)")


@dataclass(frozen=True)
class Worker:
    """One worker: a process of the script, started by an agent.

    Args:
        node, local_rank, rank: who it is.
        output: what it printed.
        errors: what it wrote to stderr.
    """

    node: int
    local_rank: int
    rank: int
    output: str
    errors: str


@dataclass(frozen=True)
class Agent:
    """One torchrun process and its workers.

    Args:
        node: its node rank.
        exit_code: None if it had to be killed.
        workers: in the order of their local ranks.
        log: what the agent itself wrote.
    """

    node: int
    exit_code: int | None
    workers: tuple[Worker, ...]
    log: str


@dataclass(frozen=True)
class Run:
    """What came of a run. Shows itself as the output of all workers, rank 0 first."""

    agents: tuple[Agent, ...]

    @property
    def workers(self) -> list[Worker]:
        return [worker for agent in self.agents for worker in agent.workers]

    def __repr__(self) -> str:
        lines = []
        for agent in self.agents:
            how = "was killed" if agent.exit_code is None else f"ended with exit code {agent.exit_code}"
            lines.append(f"agent of node {agent.node} {how}")
            for worker in agent.workers:
                lines += [f"  rank {worker.rank}: {line}" for line in worker.output.splitlines()]
        return "\n".join(lines)


class AgentsFailed(RuntimeError):
    """A worker or an agent failed; the text says which one and why. ``run`` holds all output."""

    def __init__(self, text: str, run: Run) -> None:
        self.run = run
        super().__init__(text)


class AgentsTimeout(AgentsFailed):
    """The time-out passed; everything was ended."""


def run_agents(
    script: str | Path,
    *args: str,
    nodes: int = 2,
    per_node: int = 2,
    timeout: float = DEFAULT_TIMEOUT,
) -> Run:
    """Run a script under several torchrun agents, each of which believes to be a node of its own.

    Args:
        script: path of the training script.
        args: its arguments.
        nodes: number of agents.
        per_node: workers of each agent.
        timeout: seconds for everything.

    Raises:
        AgentsFailed: a worker or agent failed.
        AgentsTimeout: it took too long.
    """
    script = Path(script).resolve()
    if not script.is_file():
        raise FileNotFoundError(f"there is no script {script.name} in {script.parent}")
    deadline = time.monotonic() + timeout
    for start in range(_STARTS):
        run, failures, in_time = _start(script, args, nodes, per_node, deadline)
        taken = any(_PORT_TAKEN.search(agent.log) for agent in run.agents if not agent.workers)
        if not taken or start == _STARTS - 1:
            break
    if not in_time:
        silent = [f"rank {worker.rank}" for worker in run.workers if not worker.output]
        nothing = f"; {', '.join(silent)} had printed nothing" if silent else ""
        raise AgentsTimeout(f"{script.name} was not finished after {timeout:g} s and was ended{nothing}.", run)
    if any(agent.exit_code for agent in run.agents):
        raise AgentsFailed(_what_failed(script.name, run, failures), run)
    return run


def _start(
    script: Path, args: Sequence[str], nodes: int, per_node: int, deadline: float
) -> tuple[Run, dict[int, float], bool]:
    """One start of all agents. Returns the run, when which worker wrote its last error, and whether it was in time."""
    mark = f"{os.getpid()}-{secrets.token_hex(8)}"
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="agents-", ignore_cleanup_errors=True) as folder:
        logs = [Path(folder, f"node{node}") for node in range(nodes)]
        agents: list[subprocess.Popen[bytes]] = []
        try:
            for node, log in enumerate(logs):
                log.mkdir()
                command = _command(script, args, nodes, node, per_node, port, log)
                with open(log / "agent.log", "wb") as own:
                    agents.append(
                        subprocess.Popen(
                            command,
                            stdin=subprocess.DEVNULL,
                            stdout=own,
                            stderr=subprocess.STDOUT,
                            env=_environment(mark),
                            start_new_session=True,
                        )
                    )
            in_time = _wait(agents, deadline)
            codes = [agent.poll() for agent in agents]
        finally:
            _end_all(mark, agents)
        run = Run(tuple(_collect(node, per_node, codes[node], log) for node, log in enumerate(logs)))
        return run, _last_errors(logs, per_node), in_time


def _command(
    script: Path, args: Sequence[str], nodes: int, node: int, per_node: int, port: int, log: Path
) -> list[str]:
    """What one would type on node number ``node``; ``--redirects`` and ``--log-dir`` keep the workers' output apart."""
    return [
        *(sys.executable, "-m", "utils.torchrun"),
        *("--nnodes", str(nodes), "--node-rank", str(node), "--nproc-per-node", str(per_node)),
        *("--master-addr", "127.0.0.1", "--master-port", str(port)),
        *("--redirects", "3", "--log-dir", str(log)),
        *(str(script), *args),
    ]


def _environment(mark: str) -> dict[str, str]:
    """The notebook's environment without what a launcher has set, all traffic on loopback."""
    launched = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "PET_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
    environment |= {MARK: mark, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    package = str(Path(__file__).resolve().parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    if sys.platform in ("linux", "darwin"):
        environment["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    return environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(agents: Sequence[subprocess.Popen[bytes]], deadline: float) -> bool:
    """Until all agents have ended, or one has failed and the others had their grace. False if time ran out first."""
    grace_over = None
    while any(agent.poll() is None for agent in agents):
        now = time.monotonic()
        if grace_over is None and any(agent.poll() for agent in agents):
            grace_over = now + GRACE
        if grace_over is not None and now > grace_over:
            return True
        if now > deadline:
            return False
        time.sleep(0.05)
    return True


def _end_all(mark: str, agents: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill whoever carries the mark, until nobody does: agents, workers, and what those started."""
    while marked := _marked(mark):
        for process in marked:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for agent in agents:
            agent.poll()  # so that no zombie of ours stays
        psutil.wait_procs(marked, timeout=1)
    for agent in agents:
        agent.wait()


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _worker_folders(log: Path, per_node: int) -> list[Path]:
    """``log/<run id>_<random>/attempt_0/<local rank>`` for each worker that was started."""
    folders = [next(iter(log.glob(f"*/attempt_0/{local}")), None) for local in range(per_node)]
    return [folder for folder in folders if folder is not None]


def _collect(node: int, per_node: int, code: int | None, log: Path) -> Agent:
    workers = []
    for folder in _worker_folders(log, per_node):
        local = int(folder.name)
        output, errors = (_read(folder / f"{stream}.log") for stream in ("stdout", "stderr"))
        workers.append(Worker(node, local, node * per_node + local, output, errors))
    return Agent(node, code, tuple(workers), _read(log / "agent.log"))


def _last_errors(logs: Sequence[Path], per_node: int) -> dict[int, float]:
    """When each worker wrote its last error. A worker that only lost its partner does so after the one that failed."""
    times = {}
    for node, log in enumerate(logs):
        for folder in _worker_folders(log, per_node):
            file = folder / "stderr.log"
            if file.exists() and file.stat().st_size:
                times[node * per_node + int(folder.name)] = file.stat().st_mtime
    return times


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def _what_failed(script: str, run: Run, last_errors: dict[int, float]) -> str:
    """The worker that failed first, with its last words; else the agent."""
    codes = {int(rank): int(code) for agent in run.agents for rank, _, code in _FAILED.findall(agent.log)}
    codes = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM}  # ended by its own agent
    if not codes:
        agent = next(agent for agent in run.agents if agent.exit_code)
        text = f"{script}: the agent of node {agent.node} failed with exit code {agent.exit_code}"
        return f"{text}:\n{_tail(agent.log)}"
    # A killed worker is a cause, never a consequence: its agent was not the one who killed it.
    first = min(codes, key=lambda rank: (codes[rank] > 0, last_errors.get(rank, 0.0)))
    worker = next(worker for worker in run.workers if worker.rank == first)
    code = codes[first]
    how = f"failed with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    text = f"{script}: rank {first} (node {worker.node}, local rank {worker.local_rank}) {how}"
    return f"{text}:\n{_tail(worker.errors)}" if worker.errors.strip() else f"{text}."


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_LAST_LINES:])


def _end_with_parent() -> None:
    """Ask Linux for a SIGTERM when the starting process dies; torchrun then ends its workers and itself."""
    if sys.platform != "linux":
        return
    import ctypes

    set_death_signal = 1  # PR_SET_PDEATHSIG, <sys/prctl.h>
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)
    if os.environ.get(MARK, "").partition("-")[0] not in ("", str(os.getppid())):
        sys.exit(1)  # it died before we asked


if __name__ == "__main__":
    _end_with_parent()
    from torch.distributed.run import main

    main()
