"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

agreeing.py     lengths: all ranks learn all lengths, and raise together
rings.py        ring: reduce-scatter and all-gather
halvings.py     halving: halves of halves, and back
hierarchies.py  levels: rings inside the nodes and between them
servers.py      server: bounded staleness
summing.py      what the all-reduces share: mistakes, their tensors, their messages, the memory that they hold
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.parameter_server_and_all_reduce import agreeing, halvings, hierarchies, rings, servers


@exercise(title="Agree on the length", difficulty=1, minutes=15, official=agreeing.OFFICIAL)
def lengths(check_length: Any) -> dict[str, Any]:
    """Judge ``check_length(tensor)``, which raises ValueError on all ranks if their lengths differ."""
    return judge(agreeing.OFFICIAL, agreeing.play, agreeing.CASES, check_length, ranks=(4, 3, 1))


@exercise(title="Ring all-reduce", difficulty=2, minutes=30, official=rings.OFFICIAL)
def ring(ring_all_reduce: Any) -> dict[str, Any]:
    """Judge ``ring_all_reduce(tensor)``, which works in place and by send and recv only."""
    return judge(rings.OFFICIAL, rings.play, rings.CASES, ring_all_reduce, ranks=(5, 2, 1))


@exercise(title="Halving and doubling", difficulty=3, minutes=30, official=halvings.OFFICIAL)
def halving(halving_all_reduce: Any) -> dict[str, Any]:
    """Judge ``halving_all_reduce(tensor)``: recursive halving and doubling, with ranks beyond a power of two."""
    return judge(halvings.OFFICIAL, halvings.play, halvings.CASES, halving_all_reduce, ranks=(8, 6, 1))


@exercise(title="Hierarchical all-reduce", difficulty=3, minutes=30, official=hierarchies.OFFICIAL)
def levels(hierarchical_all_reduce: Any) -> dict[str, Any]:
    """Judge ``hierarchical_all_reduce(tensor, nodes, per_node)``: a ring inside the nodes, and rings between them."""
    return judge(hierarchies.OFFICIAL, hierarchies.play, hierarchies.CASES, hierarchical_all_reduce, ranks=(6, 1))


@exercise(title="A server with bounded staleness", difficulty=3, minutes=30, official=servers.OFFICIAL)
def server(Server: Any) -> dict[str, Any]:
    """Judge the class ``Server(weights, workers, bound, lr)`` with its methods ``pull`` and ``push``."""
    return judge(servers.OFFICIAL, servers.play, servers.draw, Server, timeout=30)
