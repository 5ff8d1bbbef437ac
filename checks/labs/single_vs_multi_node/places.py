"""Check of ``rank_of`` and ``coordinates_of``: every process of clusters whose nodes are not alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, judge, leaves, refuse
from checks.engine.plain import from_array, number, shorten
from checks.points import passed

RANK, BACK = "sum(counts[:node_rank]) + local_rank", "return node, local, sum(counts)"
LOOP = "    while local >= counts[node]:\n        local -= counts[node]\n        node += 1\n"
RANKS = Reference("single_vs_multi_node", "rank_of", {
    "the launcher counts node by node; you deal the ranks out to the nodes like cards":
        {RANK: "sum(min(c, local_rank) for c in counts) + sum(c > local_rank for c in counts[:node_rank])"},
    "nodes need not be alike: add up how many processes the nodes before have":
        {RANK: "node_rank * counts[node_rank] + local_rank"},
    "nodes need not be alike, and not all are like the first": {RANK: "node_rank * counts[0] + local_rank"},
    "multiply by the number of processes on a node, not by the number of nodes":
        {RANK: "node_rank * len(counts) + local_rank"},
    "node rank and local rank are swapped": {RANK: "sum(counts[:local_rank]) + node_rank"},
    "ranks are counted from 0, yours from 1": {RANK: RANK + " + 1"},
    "the local rank alone is not enough: nodes before this one have processes too": {RANK: "local_rank"},
})  # fmt: skip
PLACES = Reference("single_vs_multi_node", "coordinates_of", {
    "node rank and local rank are swapped in what you return": {BACK: "return local, node, sum(counts)"},
    "the world size counts processes, yours counts nodes": {BACK: "return node, local, len(counts)"},
    "the world size counts the processes of all nodes, yours those of one": {BACK: "return node, local, counts[node]"},
    "nodes need not be alike, and not all are like the first": {LOOP: "    node, local = divmod(rank, counts[0])\n"},
    "divide by the number of processes on a node, not by the number of nodes":
        {LOOP: "    node, local = divmod(rank, len(counts))\n"},
    "the launcher counts node by node; you deal the ranks out like cards":
        {LOOP: "    dealt = sorted((k, n) for n in range(len(counts)) for k in range(counts[n]))\n"
               "    local, node = dealt[rank]\n"},
    "node ranks and local ranks are counted from 0, yours from 1": {BACK: "return node + 1, local + 1, sum(counts)"},
    "a node's first process is taken for one more of the node before": {"local >= counts": "local > counts"},
})  # fmt: skip
PARTS = {"rank_of": 1, "coordinates_of": 1}
OFFICIAL = Reference("single_vs_multi_node", "rank_of coordinates_of", {**RANKS.mistakes, **PLACES.mistakes})


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    first = [3, 3], [3, 1, 2], [1], [1, 1, 1], [17] * 18
    return {"counts": first[number] if number < 5 else [rng.randint(1, 9) for _ in range(rng.randint(2, 9))]}


def play_ranks(case: dict[str, Any], rank_of: Callable[..., Any]) -> dict[str, Any]:
    found, counts = {}, case["counts"]
    for node, local in [(node, local) for node, count in enumerate(counts) for local in range(count)]:
        found[f"rank_of({node}, {local}, counts)"] = rank = _called(rank_of, node, local, counts)
        _whole([rank], "rank_of returns one whole number, the rank")
    return found


def play_places(case: dict[str, Any], coordinates_of: Callable[..., Any]) -> dict[str, Any]:
    found, counts = {}, case["counts"]
    for rank in range(sum(counts)):
        result = _called(coordinates_of, rank, counts)
        three = isinstance(result, list | tuple) and len(result) == 3
        fault = "coordinates_of returns three numbers: node rank, local rank, world size"
        refuse(not three, fault, measured=shorten(result))
        found[f"coordinates_of({rank}, counts)"] = place = [from_array(part) for part in result]
        _whole(place, "coordinates_of returns three whole numbers")
    return found


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    with leaves(counts=arguments[-1]):
        return from_array(function(*arguments))


def _whole(numbers: list[Any], words: str) -> None:
    words += ": // gives one, / a float" * any(isinstance(one, float) for one in numbers)
    refuse(any(number(one, whole=True) is None for one in numbers), words, measured=shorten(numbers))


@exercise(title="Ranks and back", difficulty=1, minutes=10, parts=PARTS, official=OFFICIAL)
def ranks_and_back(rank_of: Any, coordinates_of: Any) -> dict[str, Any]:
    """Judge ``rank_of(node_rank, local_rank, counts)`` and ``coordinates_of(rank, counts)``."""
    judge(RANKS, play_ranks, draw, rank_of, timeout=30)
    passed("rank_of")
    return judge(PLACES, play_places, draw, coordinates_of, timeout=30)
