"""The agents of one run under torchrun, started, killed and waited for."""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lessons.launchers import processes
from lessons.launchers.torchrun import results
from lessons.launchers.torchrun.results import AgentsFailed, AgentsTimeout, Run
from utils.ranks.ports import free_ports

if TYPE_CHECKING:
    from lessons.launchers.namespaces import Host

DEFAULT_TIMEOUT = 110.0
MARK = "COURSE_AGENTS"  # this environment variable holds the pid of whoever started it all, and a random part
#: Seconds that other agents get to end by themselves when one has failed; their workers often wait for the dead one.
GRACE = 3.0
_STARTS = 3  # a free port may be taken by somebody else before the first agent gets it
#: For runs whose size may change: after the smallest number of nodes is there, wait three seconds for more (not 30; an
#: agent that waits looks once a second whether it may join); an agent that was silent for 5 seconds is dead (not 15).
_ELASTIC = {"last_call_timeout": 3, "keep_alive_interval": 1, "keep_alive_max_attempt": 5}


def run_agents(
    script: str | Path, *args: str, timeout: float = DEFAULT_TIMEOUT, still: float | None = None, **options: Any
) -> Run:
    """Run a script under several torchrun agents, each of which believes to be a node of its own.

    Args:
        script, args, options: those of ``Agents``.
        timeout: seconds for everything.
        still: end it earlier, after so many seconds in which none of its processes has computed.

    Raises:
        AgentsFailed: a worker or agent failed.
        AgentsTimeout: it took too long.
    """
    for start in range(_STARTS):
        with agents(script, *args, **options) as started:
            for node in range(started.nodes):
                started.start(node)
            try:
                return started.wait(timeout, still)
            except AgentsFailed as failure:
                agents_alone = [agent.log for agent in failure.run.agents if not agent.workers]
                if not any("EADDRINUSE" in log for log in agents_alone) or start == _STARTS - 1:
                    raise
    raise AssertionError("unreachable")


@contextlib.contextmanager
def agents(script: str | Path, *args: str, **options: Any) -> Iterator[Agents]:
    """A run whose agents you start, kill and wait for yourself. When the block ends, all that is left of it is killed.

    with torchrun.agents("scripts/train_resumable.py", "--folder", folder, rendezvous="c10d", min_nodes=1) as run:
        run.start(0)
        run.wait_for("ranks start")
        run.start(1)  # a node that joins late
        print(run.wait())

    The arguments are those of ``Agents``.

    Raises:
        FileNotFoundError: there is no such script.
        ValueError: options that do not go together.
    """
    run = Agents(Path(script).resolve(), args, **options)
    try:
        yield run
    finally:
        run.end()
        shutil.rmtree(run.folder, ignore_errors=True)


@dataclass
class _Started:
    """An agent that was started. ``mark`` is in the environment of all its processes."""

    node: int
    mark: str
    log: Path
    process: subprocess.Popen[bytes]
    killed: bool = False

    @property
    def exit_code(self) -> int | None:
        """None if it runs, or was killed from here."""
        return None if self.killed else self.process.poll()


@dataclass
class Agents:
    """A run in progress; made by ``agents``.

    Args:
        script, args: of the training.
        nodes: number of agents, the largest if ``min_nodes`` is given.
        per_node: workers of each agent.
        rendezvous: "static" (``--node-rank --master-addr --master-port``) or "c10d" (``--rdzv-backend=c10d
            --rdzv-endpoint``; ranks go to agents as they come). Either way agent 0 holds the store where they meet.
            c10d runs with ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``, so that workers that start anew meet in a new
            store: without it, in torch 2.13, they may read the addresses of dead ones (pytorch issue 135712).
            ``env`` overrides this.
        min_nodes: elastic: ``--nnodes=min_nodes:nodes``, with c10d. The run begins three seconds after so many agents
            are there; those that come later join, and those that die are missed after five seconds (``rdzv_conf``).
        max_restarts: how often the workers of an agent are started anew after one has failed.
        rdzv_conf: more for ``--rdzv-conf``: "last_call_timeout", "join_timeout", … (seconds).
        env: environment variables for agents and workers.
        hosts: of ``lessons.launchers.namespaces``: agent i runs on host i. None: all on this machine's loopback.
    """

    script: Path
    args: Sequence[str]
    nodes: int = 2
    per_node: int = 2
    rendezvous: str = "static"
    min_nodes: int | None = None
    max_restarts: int = 0
    rdzv_conf: Mapping[str, object] | None = None
    env: Mapping[str, str] | None = None
    hosts: Sequence[Host] | None = None

    def __post_init__(self) -> None:
        nodes, min_nodes = self.nodes, self.min_nodes
        if not self.script.is_file():
            raise FileNotFoundError(f"there is no script {self.script.name} in {self.script.parent}")
        if self.rendezvous not in ("static", "c10d"):
            raise ValueError(f'rendezvous is "static" or "c10d", not {self.rendezvous!r}')
        if min_nodes is not None and (self.rendezvous != "c10d" or not 1 <= min_nodes <= nodes):
            wants = f'min_nodes needs rendezvous="c10d" and lies between 1 and nodes ({nodes})'
            raise ValueError(f"{wants}, not {min_nodes}")
        if self.hosts is not None and len(self.hosts) < nodes:
            raise ValueError(f"{nodes} agents need as many hosts, and here are {len(self.hosts)}")
        self.folder, (self.port,) = Path(tempfile.mkdtemp(prefix="agents-")), free_ports(1)
        self._started: list[_Started] = []
        self._found: set[tuple[Path, int]] = set()
        self._mark = processes.new_mark()

    def command(self, node: int) -> list[str]:
        """What one would type on node number ``node``, without what only keeps the workers' output apart."""
        counts = f"{self.nodes}" if self.min_nodes is None else f"{self.min_nodes}:{self.nodes}"
        address = self.hosts[0].address if self.hosts else "127.0.0.1"
        command = ["torchrun", f"--nnodes={counts}", f"--nproc-per-node={self.per_node}"]
        if self.max_restarts:
            command.append(f"--max-restarts={self.max_restarts}")
        if self.rendezvous == "static":
            command += [f"--node-rank={node}", f"--master-addr={address}", f"--master-port={self.port}"]
        else:
            command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={address}:{self.port}"]
        conf = {**(_ELASTIC if self.min_nodes is not None else {}), **(self.rdzv_conf or {})}
        if self.rendezvous == "c10d" and not self.hosts:  # on one machine each agent would believe to be the endpoint
            conf["is_host"] = int(node == 0)
            command.append("--local-addr=127.0.0.1")
        if conf:
            command.append(f"--rdzv-conf={','.join(f'{key}={value}' for key, value in conf.items())}")
        return [*command, str(self.script), *self.args]

    def start(self, node: int) -> None:
        """Start the agent of a node. A node that was killed may be started again."""
        if not 0 <= node < self.nodes:
            raise ValueError(f"there is no node {node}: the nodes of this run are 0 to {self.nodes - 1}")
        mark, log = f"{self._mark}-{len(self._started)}", self.folder / str(len(self._started))
        log.mkdir()
        keep_apart = ["--redirects=3", f"--log-dir={log}"]
        command = [sys.executable, "-m", "lessons.launchers.torchrun", *keep_apart, *self.command(node)[1:]]
        environment = processes.clean_environment() | {MARK: mark, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if self.rendezvous == "c10d":
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        if self.hosts:
            command = self.hosts[node].inside(command)
            environment |= self.hosts[node].environment
        with open(log / "agent.log", "wb") as own:
            process = processes.start(command, environment | dict(self.env or {}), own)
        self._started.append(_Started(node, mark, log, process))

    def kill(self, node: int) -> None:
        """SIGKILL for the agent of a node and all that it has started, as if the machine had lost its power."""
        running = [agent for agent in self._started if agent.node == node and agent.process.poll() is None]
        if not running:
            raise ValueError(f"no agent of node {node} is running")
        running[-1].killed = True
        _kill(running[-1].mark, [running[-1].process])

    def wait_for(self, text: str, timeout: float = DEFAULT_TIMEOUT) -> str:
        """Wait until a worker has printed a line with this text. Each line is found once.

        Returns:
            The line.

        Raises:
            AgentsTimeout: it did not come in time.
            AgentsFailed: all agents have ended without it.
        """
        deadline = time.monotonic() + timeout
        while True:
            over = all(agent.process.poll() is not None for agent in self._started)
            for file in sorted(self.folder.glob("*/*/attempt_*/*/stdout.log")):
                for number, line in enumerate(file.read_text(errors="replace").splitlines()):
                    if text in line and (file, number) not in self._found:
                        self._found.add((file, number))
                        return line
            if over:
                raise AgentsFailed(f"all agents have ended, and no worker has printed {text!r}", self.run)
            if time.monotonic() > deadline:
                raise AgentsTimeout(f"after {timeout:g} s no worker had printed {text!r}", self.run)
            time.sleep(0.05)

    def wait(self, timeout: float = DEFAULT_TIMEOUT, still: float | None = None) -> Run:
        """Wait until all agents that were started have ended.

        Without ``min_nodes``, when one fails the others get a grace of three seconds; then they are killed.

        Args:
            timeout: seconds.
            still: end it earlier, after so many seconds in which none of its processes has computed.

        Raises:
            AgentsFailed: a worker or agent failed (those that you have killed do not count).
            AgentsTimeout: it took too long; everything was ended.
        """
        running = {agent.log: agent.process for agent in self._started if not agent.killed}
        grace, activity = GRACE if self.min_nodes is None else math.inf, processes.Activity(MARK, self._mark)
        in_time = processes.watch(
            running, running, timeout, grace, lambda: still is not None and activity.seconds_ago() > still
        )
        self.end()
        run = self.run
        if not in_time:
            raise results.timed_out(self.script.name, run, timeout)
        if any(agent.exit_code for agent in run.agents):
            raise results.failed(self.script.name, run)
        return run

    @property
    def run(self) -> Run:
        """What has come of it so far."""
        return Run(tuple(results.collect(one.node, self.per_node, one.exit_code, one.log) for one in self._started))

    def end(self) -> None:
        """Kill whoever is left: agents, workers, and what those started."""
        for agent in self._started:
            agent.killed |= agent.process.poll() is None
        _kill(self._mark, [agent.process for agent in self._started])


def _kill(mark: str, agents: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill whoever carries the mark, until nobody does."""
    processes.kill_all(lambda: processes.marked(MARK, mark))
    for agent in agents:
        agent.wait()  # so that no zombie of ours stays
