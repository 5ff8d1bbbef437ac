"""What came of a run under torchrun: the outputs of agents and workers, and the sentence that says what failed.

``lessons.launchers.torchrun`` starts and ends them; it hands over folders with their logs.
"""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from lessons.launchers import processes
from utils.ranks.failures import how_it_ended

#: The file beside each worker's logs in which the agent notes what the worker was told about itself.
ENVIRONMENT = "environment.json"
_FAILED = re.compile(r"rank +: (\d+) \(local_rank: (\d+)\)\n +exitcode +: (-?\d+)")


@dataclass(frozen=True)
class Worker:
    """One worker: a process of the script, started by an agent.

    Args:
        node, local_rank, rank: who it is. ``node`` is the number of its agent; its rank is what torchrun told it.
        output: what it printed.
        errors: what it wrote to stderr.
        start: 0 for the first time that its agent started workers, 1 for the next, …
        world_size: how many workers there were then.
        last_error: when it last wrote to stderr (seconds since 1970); 0: never.
    """

    node: int
    local_rank: int
    rank: int
    output: str
    errors: str
    start: int = 0
    world_size: int = 0
    last_error: float = 0.0


@dataclass(frozen=True)
class Agent:
    """One torchrun process and its workers.

    Args:
        node: its number.
        exit_code: None if it had to be killed.
        workers: in the order of their local ranks; if workers were started again, the last ones.
        log: what the agent itself wrote.
        earlier: workers of earlier starts, in order.
    """

    node: int
    exit_code: int | None
    workers: tuple[Worker, ...]
    log: str
    earlier: tuple[Worker, ...] = ()


@dataclass(frozen=True)
class Run:
    """What came of a run. Shows itself as the output of all workers, rank 0 first."""

    agents: tuple[Agent, ...]

    @property
    def workers(self) -> list[Worker]:
        """Of the last start of each agent."""
        return [worker for agent in self.agents for worker in agent.workers]

    @property
    def all_workers(self) -> list[Worker]:
        """Of all starts, the first starts first."""
        workers = [worker for agent in self.agents for worker in (*agent.earlier, *agent.workers)]
        return sorted(workers, key=lambda worker: worker.start)

    def __repr__(self) -> str:
        lines = []
        for agent in self.agents:
            how = "was killed" if agent.exit_code is None else how_it_ended(agent.exit_code, in_sentence=True)
            lines.append(f"agent of node {agent.node} {how}")
            for worker in (*agent.earlier, *agent.workers):
                start = f" (start {worker.start})" if agent.earlier else ""
                lines += [f"  rank {worker.rank}{start}: {line}" for line in worker.output.splitlines()]
        return "\n".join(lines)


class AgentsFailed(RuntimeError):
    """A worker or an agent failed; the text says which one and why. ``run`` holds all output."""

    def __init__(self, text: str, run: Run) -> None:
        self.run = run
        super().__init__(text)


class AgentsTimeout(AgentsFailed):
    """The time-out passed; everything was ended."""


def collect(node: int, per_node: int, code: int | None, log: Path) -> Agent:
    """Read the logs of one agent.

    Args:
        node: number of the agent.
        per_node: workers of each agent.
        code: exit code of the agent; None if it was killed.
        log: the agent's folder, with ``agent.log`` and ``<run id>_<random>/attempt_<start>/<local rank>/``.
    """
    folders = [folder for folder in log.glob("*/attempt_*/*") if folder.name.isdigit()]
    workers = sorted((_worker(node, per_node, one) for one in folders), key=lambda one: (one.start, one.local_rank))
    last = workers[-1].start if workers else 0
    earlier, now = (tuple(one for one in workers if (one.start == last) == which) for which in (False, True))
    return Agent(node, code, now, processes.read(log / "agent.log"), earlier)


def timed_out(script: str, run: Run, timeout: float) -> AgentsTimeout:
    """The error for a run that was not finished in time."""
    silent = [f"rank {worker.rank}" for worker in run.workers if not worker.output]
    nothing = f"; {', '.join(silent)} had printed nothing" if silent else ""
    return AgentsTimeout(f"{script} was not finished after {timeout:g} s and was ended{nothing}.", run)


def failed(script: str, run: Run) -> AgentsFailed:
    """The error that names the worker that failed first, with its last words; else the agent."""
    codes = {int(rank): int(code) for agent in run.agents for rank, _, code in _FAILED.findall(agent.log)}
    codes = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM}  # ended by its own agent
    workers = {worker.rank: worker for worker in run.workers}
    codes = {rank: code for rank, code in codes.items() if rank in workers}
    if not codes:
        agent = next(agent for agent in run.agents if agent.exit_code)
        text = f"{script}: the agent of node {agent.node} {how_it_ended(agent.exit_code, in_sentence=True)}"
        return AgentsFailed(f"{text}:\n{processes.tail(agent.log)}", run)
    # A killed worker is a cause, never a consequence: its agent was not the one who killed it. And a worker that only
    # lost its partner says so after the one that failed.
    first = min(codes, key=lambda rank: (codes[rank] > 0, workers[rank].last_error))
    worker, code = workers[first], codes[first]
    who = f"rank {first} (node {worker.node}, local rank {worker.local_rank})"
    text = f"{script}: {who} {how_it_ended(code, in_sentence=True)}"
    return AgentsFailed(f"{text}:\n{processes.tail(worker.errors)}" if worker.errors.strip() else f"{text}.", run)


def _worker(node: int, per_node: int, folder: Path) -> Worker:
    """From ``<run id>_<random>/attempt_<start>/<local rank>``."""
    local, start = int(folder.name), int(folder.parent.name.removeprefix("attempt_"))
    told = json.loads(processes.read(folder / ENVIRONMENT) or "{}")  # empty if the agent died while it wrote
    rank, world_size = int(told.get("RANK", node * per_node + local)), int(told.get("WORLD_SIZE", 0))
    output, errors = (processes.read(folder / f"{stream}.log") for stream in ("stdout", "stderr"))
    when = (folder / "stderr.log").stat().st_mtime if errors else 0.0
    return Worker(node, local, rank, output, errors, start, world_size, when)
