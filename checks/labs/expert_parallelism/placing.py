"""Check of ``place``: equally many experts on each node, and the worst node near the best that is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import from_array, number, shorten

FIRST = "    better = True\n"
GROUPS = "\n    return [next(n for n in range(nodes) if e in groups[n]) for e in range(experts)]\n"
OFFICIAL = Reference("expert_parallelism", "place", {
    "experts are placed in the order of their numbers": {FIRST: "    better = False\n"},
    "only the loads are balanced, and experts that are chosen together lie apart": {
        FIRST: "    groups, order = [[] for _ in range(nodes)], sorted(range(experts), key=lambda e: -load[e])\n"
        "    for e in order:\n        free = [group for group in groups if len(group) < size]\n"
        "        min(free, key=lambda group: sum(load[i] for i in group)).append(e)" + GROUPS + FIRST},
    "experts that are chosen together are together, and one node has all the popular ones": {
        FIRST: "    groups, left = [], set(range(experts))\n    for _ in range(nodes):\n"
        "        group = [max(left, key=lambda e: load[e])]\n        left.remove(group[0])\n"
        "        while len(group) < size:\n"
        "            group.append(max(left, key=lambda e: sum(rows[e][i] for i in group)))\n"
        "            left.remove(group[-1])\n        groups.append(group)" + GROUPS + FIRST},
})  # fmt: skip
NEAR = 1.12  # on average over the traffics of a case: in one of them, a good search may be unlucky
EXPERTS, NODES = 64, (8, 4, 8, 4, 8, 4)
CASES = [{"seed": 5}]
_known: dict[int, list[float]] = {}


@exercise(OFFICIAL, CASES, title="Which expert on which node", difficulty=2, minutes=25, timeout=120)
def place(case: dict[str, Any], place: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``place(together, nodes)``."""
    seed = case["seed"]
    if seed not in _known:
        _known[seed] = _worst(seed, OFFICIAL.functions()[0])
    ratios = [one / best for one, best in zip(_worst(seed, place), _known[seed], strict=True)]
    average = sum(ratios) / len(ratios)
    name = "tokens of the node that gets most, in units of the official answer's"
    return {name: average if average > NEAR else f"at most {NEAR}"}


def _worst(seed: int, place: Callable[..., Any]) -> list[float]:
    """For each traffic of a case, what the node gets that gets most."""
    found = []
    for number_, nodes in enumerate(NODES):
        together = traffic(100 * seed + number_)
        made = from_array(place(together.clone(), nodes))
        placed = [number(from_array(one), whole=True) for one in made] if isinstance(made, list | tuple) else [None]
        refuse(None in placed, "the result is not a list of whole numbers", measured=shorten(made))
        refuse(len(placed) != EXPERTS, "the result has not 64 numbers, one for each expert", measured=len(placed))
        each = Counter(placed)
        refuse(set(each) - set(range(nodes)), f"there are {nodes} nodes, and the result names others",
               measured=shorten(sorted(each)))  # fmt: skip
        sizes = [each[node] for node in range(nodes)]
        refuse(len(set(sizes)) > 1, "the nodes have not equally many experts", measured=shorten(sizes))
        found.append(max(received(together, placed, nodes)))
    return found


def traffic(seed: int, tokens: int = 10_000) -> torch.Tensor:
    """How many tokens have chosen both of two experts. There are groups of experts that are often chosen together."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.randperm(EXPERTS, generator=generator) % 8
    often = (0.4 + 1.2 * torch.rand(EXPERTS, generator=generator)) / (1.0 + group) ** 0.6
    first = often.multinomial(tokens, True, generator=generator)
    friends = often * (group[:, None] == group)
    friends = 0.92 * friends / friends.sum(1, keepdim=True) + 0.08 * often / often.sum()
    second = friends.fill_diagonal_(0)[first].multinomial(1, generator=generator)[:, 0]
    counts = torch.bincount(first * EXPERTS + second, minlength=EXPERTS**2).view(EXPERTS, EXPERTS)
    return counts + counts.t()


def received(together: torch.Tensor, placed: list[int], nodes: int) -> list[float]:
    """For each node, how many tokens have at least one of its experts."""
    on = [torch.tensor([one == node for one in placed]) for node in range(nodes)]
    return [float(together[mine].sum() - together[mine][:, mine].sum() / 2) for mine in on]
