"""Several torchrun agents on this machine, one for each pretended node: what a cluster does, in a notebook cell.

``run_agents("scripts/who_am_i.py", nodes=2, per_node=2)`` starts two real agents. Each starts two workers; all four
meet through the port of the first agent, as they would across a network. Output is collected per worker and comes back
in rank order. Whatever happens, no process is left: all that is started carries a mark in its environment, by which it
is killed at the end.

``agents(…)`` is for runs in which something happens: agents that start late, agents and workers that are killed.

``python -m lessons.launchers.torchrun …`` is ``torchrun …``, except that it ends when its starter does, and
that it keeps the logs of every start of its workers.

- ``agent_group``: the agents, started, killed and waited for. ``results``: what came of them.
- ``elastic``: what happened in an elastic run, as a picture.
"""

from lessons.launchers.torchrun.agent_group import Agents, agents, run_agents
from lessons.launchers.torchrun.results import Agent, AgentsFailed, AgentsTimeout, Run, Worker

__all__ = ["Agent", "Agents", "AgentsFailed", "AgentsTimeout", "Run", "Worker", "agents", "run_agents"]
