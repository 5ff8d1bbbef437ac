"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

traveling.py  moe: tokens travel to the ranks of their experts and back, with their gradients
routing.py    router: a bias that balances the load, and a bound on the nodes of a token
averaging.py  finish_gradients: what is averaged over whom, and the norm of the whole model
placing.py    place: which expert on which node, so that no link carries much more than the others
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.expert_parallelism import averaging, placing, routing, traveling


@exercise(title="Tokens travel to their experts", difficulty=3, minutes=30, official=traveling.OFFICIAL)
def moe(moe: Any) -> dict[str, Any]:
    """Judge ``moe(x, chosen, weights, experts)``."""
    return judge(traveling.OFFICIAL, traveling.play, traveling.CASES, moe, ranks=(4, 3, 1))


@exercise(title="A router in balance", difficulty=2, minutes=20, official=routing.OFFICIAL)
def router(route: Any, update: Any) -> dict[str, Any]:
    """Judge ``route(logits, bias, k, nodes, limit)`` and ``update(bias, chosen, speed)``."""
    return judge(routing.OFFICIAL, routing.play, routing.draw, route, update)


@exercise(title="Gradients of two kinds", difficulty=2, minutes=20, official=averaging.OFFICIAL)
def finish_gradients(finish_gradients: Any) -> dict[str, Any]:
    """Judge ``finish_gradients(dense, experts, mesh, limit)``."""
    return judge(averaging.OFFICIAL, averaging.play, averaging.CASES, finish_gradients, ranks=(4, 2))


@exercise(title="Which expert on which node", difficulty=2, minutes=25, official=placing.OFFICIAL)
def place(place: Any) -> dict[str, Any]:
    """Judge ``place(together, nodes)``."""
    return judge(placing.OFFICIAL, placing.play, placing.CASES, place, timeout=120)
