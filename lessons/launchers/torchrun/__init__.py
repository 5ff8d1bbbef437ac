"""Several torchrun agents on this machine, one for each pretended node: what a cluster does, in a notebook cell.

``run_agents("scripts/who_am_i.py", nodes=2, per_node=2)`` starts two real agents. Each starts two workers; all four
meet through the port of the first agent, as they would across a network. Output is collected per worker and comes back
in rank order. Whatever happens, no process is left: every one that is started here carries a mark in its environment,
and at the end whoever still carries it is killed.

``agents(…)`` is for runs in which something happens: agents that start late, agents and workers that are killed.

``python -m lessons.launchers.torchrun …`` is ``torchrun …``, except that it ends when its starter does, and
that it keeps the logs of every start of its workers.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lessons.launchers.torchrun import results
from lessons.launchers.torchrun.agent_group import DEFAULT_TIMEOUT, MARK, Agents
from lessons.launchers.torchrun.results import Agent, AgentsFailed, AgentsTimeout, Run, Worker
from utils.ranks.ports import free_ports

if TYPE_CHECKING:
    from lessons.launchers.namespaces import Host

__all__ = ["MARK", "Agent", "Agents", "AgentsFailed", "AgentsTimeout", "Run", "Worker", "agents", "run_agents"]

_STARTS = 3  # a free port may be taken by somebody else before the first agent gets it
_PORT_TAKEN = ("eaddrinuse", "address already in use")
#: For runs whose size may change: after the smallest number of nodes is there, wait three seconds for more (not 30; an
#: agent that waits looks once a second whether it may join); an agent that was silent for 5 seconds is dead (not 15).
_ELASTIC = {"last_call_timeout": 3, "keep_alive_interval": 1, "keep_alive_max_attempt": 5}


def run_agents(
    script: str | Path, *args: str, timeout: float = DEFAULT_TIMEOUT, still: float | None = None, **options: Any
) -> Run:
    """Run a script under several torchrun agents, each of which believes to be a node of its own.

    Args:
        script: path of the training script.
        args: its arguments.
        timeout: seconds for everything.
        still: end it earlier, after so many seconds in which none of its processes has computed.
        options: those of ``agents``: ``nodes``, ``per_node``, ``rendezvous``, ``max_restarts``, ``hosts``, ….

    Raises:
        AgentsFailed: a worker or agent failed.
        AgentsTimeout: it took too long.
    """
    deadline = time.monotonic() + timeout
    for start in range(_STARTS):
        with agents(script, *args, **options) as started:
            for node in range(started.nodes):
                started.start(node)
            try:
                return started.wait(deadline - time.monotonic(), still)
            except AgentsTimeout as late:
                raise results.timed_out(Path(script).name, late.run, timeout) from None
            except AgentsFailed as failure:
                taken = any(_port_taken(agent.log) for agent in failure.run.agents if not agent.workers)
                if not taken or start == _STARTS - 1:
                    raise
    raise AssertionError("unreachable")


@contextlib.contextmanager
def agents(
    script: str | Path,
    *args: str,
    nodes: int = 2,
    per_node: int = 2,
    rendezvous: str = "static",
    min_nodes: int | None = None,
    max_restarts: int = 0,
    rdzv_conf: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    hosts: Sequence[Host] | None = None,
) -> Iterator[Agents]:
    """A run whose agents you start, kill and wait for yourself. When the block ends, all that is left of it is killed.

    with torchrun.agents("scripts/train_resumable.py", "--folder", folder, rendezvous="c10d", min_nodes=1) as run:
        run.start(0)
        run.wait_for("ranks start")
        run.start(1)  # a node that joins late
        print(run.wait())

    Args:
        script: path of the training script.
        args: its arguments.
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

    Raises:
        FileNotFoundError: there is no such script.
        ValueError: options that do not go together.
    """
    script = Path(script).resolve()
    if not script.is_file():
        raise FileNotFoundError(f"there is no script {script.name} in {script.parent}")
    if rendezvous not in ("static", "c10d"):
        raise ValueError(f'rendezvous is "static" or "c10d", not {rendezvous!r}')
    if min_nodes is not None and (rendezvous != "c10d" or not 1 <= min_nodes <= nodes):
        raise ValueError(f'min_nodes needs rendezvous="c10d" and lies between 1 and nodes ({nodes}), not {min_nodes}')
    if hosts is not None and len(hosts) < nodes:
        raise ValueError(f"{nodes} agents need as many hosts, and here are {len(hosts)}")
    conf = {**(_ELASTIC if min_nodes is not None else {}), **(rdzv_conf or {})}
    folder = Path(tempfile.mkdtemp(prefix="agents-"))
    run = Agents(
        script,
        args,
        nodes,
        per_node,
        rendezvous,
        min_nodes,
        max_restarts,
        conf,
        env or {},
        hosts,
        folder,
        *free_ports(1),
    )
    try:
        yield run
    finally:
        run.end()
        shutil.rmtree(folder, ignore_errors=True)


def _port_taken(log: str) -> bool:
    return any(words in log.lower() for words in _PORT_TAKEN)
