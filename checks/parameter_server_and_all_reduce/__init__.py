"""The exercises of this lab: all-reduces out of send and recv, and a parameter server. Each module holds a contract.

agreeing.py       lengths: all ranks learn all lengths, and raise together
rings.py          ring: reduce-scatter and all-gather
halvings.py       halving: halves of halves, and back
hierarchies.py    levels: rings inside the nodes and between them
servers.py        server: bounded staleness
ring_messages.py  what the all-reduces share; traces.py reads from wrong sums what was added
"""

from __future__ import annotations

from typing import Any

from checks.contracts import judge
from checks.framework import exercise
from checks.parameter_server_and_all_reduce import agreeing, halvings, hierarchies, rings, servers


@exercise(title="Agree on the length", difficulty=1, minutes=15)
def lengths(check_length: Any) -> dict[str, Any]:
    """Judge ``check_length(tensor)``, which raises ValueError on all ranks if their lengths differ."""
    return judge(agreeing.CONTRACT, check_length)


@exercise(title="Ring all-reduce", difficulty=2, minutes=30)
def ring(ring_all_reduce: Any) -> dict[str, Any]:
    """Judge ``ring_all_reduce(tensor)``, which works in place and by send and recv only."""
    return judge(rings.CONTRACT, ring_all_reduce)


@exercise(title="Halving and doubling", difficulty=3, minutes=30)
def halving(halving_all_reduce: Any) -> dict[str, Any]:
    """Judge ``halving_all_reduce(tensor)``: recursive halving and doubling, with ranks beyond a power of two."""
    return judge(halvings.CONTRACT, halving_all_reduce)


@exercise(title="Hierarchical all-reduce", difficulty=3, minutes=30)
def levels(hierarchical_all_reduce: Any) -> dict[str, Any]:
    """Judge ``hierarchical_all_reduce(tensor, nodes, per_node)``: a ring inside the nodes, and rings between them."""
    return judge(hierarchies.CONTRACT, hierarchical_all_reduce)


@exercise(title="A server with bounded staleness", difficulty=3, minutes=30)
def server(Server: Any) -> dict[str, Any]:
    """Judge the class ``Server(weights, workers, bound, lr)`` with its methods ``pull`` and ``push``."""
    return judge(servers.CONTRACT, Server)
