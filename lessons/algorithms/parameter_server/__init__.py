"""A parameter server: workers pull parameters, compute a gradient, and push it.

The first ranks are the **servers** (each holds an equal part of the parameters), the next ones the **workers**. Three
modes say when a worker that pulls has to wait, and what becomes of a gradient:

- ``"synchronous"``: the server waits for one gradient of every worker, takes one step with their mean, and only then
  lets anybody pull again.
- ``"asynchronous"``: nobody waits. Every gradient is a step of its own, at once. Source: Dean and others: Large Scale
  Distributed Deep Networks, 2012 (Downpour SGD).
- ``"bounded"``: asynchronous, but nobody may be more than ``bound`` gradients ahead of the slowest worker. Source: Ho
  and others: More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, 2013.

**Staleness** of a gradient: how many steps the server has taken between the pull that it was computed from and its
push. ``train`` runs on ranks, in real time; ``simulate`` runs the same ``Server`` in one process, in simulated time,
and so gives the same numbers on every machine.

Messages go over send and recv, and the server receives from whoever comes first. NCCL cannot do that: use gloo.
"""

from lessons.algorithms.parameter_server.real import train
from lessons.algorithms.parameter_server.server import MODES, Loss, Point, Record, Server
from lessons.algorithms.parameter_server.simulated import simulate

__all__ = ["MODES", "Loss", "Point", "Record", "Server", "simulate", "train"]
