"""The agents of one run under torchrun, started, killed and waited for; ``torchrun.agents`` makes them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from lessons.launchers import processes
from lessons.launchers.torchrun import results as results
from lessons.launchers.torchrun.results import AgentsFailed, AgentsTimeout, Run

if TYPE_CHECKING:
    from lessons.launchers.namespaces import Host

DEFAULT_TIMEOUT = 110.0
MARK = "COURSE_AGENTS"  # this environment variable holds the pid of whoever started it all, and a random part
#: Seconds that other agents get to end by themselves when one has failed; their workers often wait for the dead one.
GRACE = 3.0


@dataclass
class _Started:
    """An agent that was started. ``mark`` is in the environment of all its processes."""

    node: int
    mark: str
    log: Path
    process: subprocess.Popen[bytes]
    killed: bool = False


@dataclass
class Agents:
    """A run in progress; made by ``lessons.launchers.torchrun.agents``, which explains the fields."""

    script: Path
    args: Sequence[str]
    nodes: int
    per_node: int
    rendezvous: str
    min_nodes: int | None
    max_restarts: int
    rdzv_conf: Mapping[str, object]
    env: Mapping[str, str]
    hosts: Sequence[Host] | None
    folder: Path
    port: int
    _started: list[_Started] = field(default_factory=list)
    _found: set[tuple[Path, int]] = field(default_factory=set)
    _mark: str = field(default_factory=processes.new_mark)

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
        conf = dict(self.rdzv_conf)
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
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=own,
                stderr=subprocess.STDOUT,
                env=environment | self.env,
                start_new_session=True,
            )
        self._started.append(_Started(node, mark, log, process))

    def kill(self, node: int) -> None:
        """SIGKILL for the agent of a node and all that it has started, as if the machine had lost its power."""
        running = [agent for agent in self._started if agent.node == node and agent.process.poll() is None]
        if not running:
            raise ValueError(f"no agent of node {node} is running")
        running[-1].killed = True
        _kill(running[-1].mark, [running[-1].process])

    def kill_worker(self, rank: int) -> None:
        """SIGKILL for one worker, by the rank that it has now. Its agent lives on and notices."""
        agents = {agent.process.pid for agent in self._started}
        for process in processes.marked(MARK, self._mark):
            with contextlib.suppress(psutil.Error):
                if process.ppid() in agents and process.environ().get("RANK") == str(rank):
                    return process.kill()
        raise ValueError(f"no worker with rank {rank} is running")

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
        in_time = self._wait(time.monotonic() + timeout, still)
        codes = self._exit_codes()
        self.end()
        run = self._run(codes)
        if not in_time:
            raise results.timed_out(self.script.name, run, timeout)
        if any(codes):
            last = results.last_errors([(agent.node, agent.log) for agent in self._started], self.per_node)
            raise results.failed(self.script.name, run, last)
        return run

    @property
    def run(self) -> Run:
        """What has come of it so far."""
        return self._run(self._exit_codes())

    def end(self) -> None:
        """Kill whoever is left: agents, workers, and what those started."""
        _kill(self._mark, [agent.process for agent in self._started])

    def _wait(self, deadline: float, still: float | None) -> bool:
        """Until all have ended, or one has failed and the others had their grace. False if time ran out first."""
        grace_over, activity = None, processes.Activity(MARK, self._mark)
        while any(agent.process.poll() is None for agent in self._started):
            now = time.monotonic()
            if grace_over is None and self.min_nodes is None and any(self._exit_codes()):
                grace_over = now + GRACE
            if grace_over is not None and now > grace_over:
                return True
            if now > deadline or (still is not None and activity.seconds_ago() > still):
                return False
            time.sleep(0.05)
        return True

    def _exit_codes(self) -> list[int | None]:
        """Of all agents that were started; None for those that run, or that were killed from here."""
        return [None if agent.killed else agent.process.poll() for agent in self._started]

    def _run(self, codes: Sequence[int | None]) -> Run:
        started = zip(self._started, codes, strict=True)
        return Run(tuple(results.collect(agent.node, self.per_node, code, agent.log) for agent, code in started))


def _kill(mark: str, agents: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill whoever carries the mark, until nobody does."""
    processes.kill_all(lambda: processes.marked(MARK, mark))
    for agent in agents:
        agent.wait()  # so that no zombie of ours stays
