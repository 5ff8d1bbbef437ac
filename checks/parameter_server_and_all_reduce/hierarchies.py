"""Exercise 4: ``hierarchical_all_reduce(tensor, nodes, per_node)``: rings inside the nodes, and rings between them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.parameter_server_and_all_reduce import ring_messages
from checks.parameter_server_and_all_reduce.ring_messages import chunk_bytes, sends_of


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    few = rng.choice((2, 3))
    worlds = {6: [(2, 3), (3, 2), rng.choice(((1, 6), (6, 1)))], few: [(1, few), (few, 1)], 1: [(1, 1)]}
    for ranks, shapes in worlds.items():
        for number, (nodes, per_node) in enumerate(shapes):
            drawn = ring_messages.draw_tensors(rng, ranks, ranks > 4)
            for case in drawn if not number else rng.sample(drawn[:4], 2):
                cases.append({"ranks": ranks, "nodes": nodes, "ranks per node": per_node, **case})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    ring_messages.play(case, watch, facts, "hierarchical_all_reduce", case["nodes"], case["ranks per node"])


def _wire(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
    """Messages of any number and size: the judge looks at where they go."""
    if case["ranks"] == 1:
        return {}
    most = Amount(calls=10**6, bytes=100 * case["length"] * ring_messages.item(case) + 10**4, least=0)
    return {"send": most, "recv": most}


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    nodes, per_node, item = case["nodes"], case["ranks per node"], ring_messages.item(case)
    share, whole = chunk_bytes(case, per_node), case["length"] * item
    across = 2 * (nodes - 1) / nodes * whole
    # The shares of two ranks may differ by one element, and so may their parts; a rank may send its own to all others.
    within, inside_within = max(math.ceil(share / item / nodes) + 1, nodes) * item, max(share, per_node * item)
    abroad = [
        [(to, size) for to, size in sends_of(one) if to // per_node != rank // per_node]
        for rank, one in enumerate(world)
    ]
    yield from ring_messages.judge_sum(case, world, (nodes, per_node), any(abroad))
    between = [
        sum(size for rank in range(node * per_node, (node + 1) * per_node) for _, size in abroad[rank])
        for node in range(nodes)
    ]
    if min(nodes, per_node) > 1 and all(
        {to for to, _ in sends_of(one)} == {(r + 1) % len(world)} for r, one in enumerate(world)
    ):
        words = "this is one flat ring through all ranks, which sends 2(N − 1)/N · S from node to node: "
        words += "add up inside the node first"
        yield Broken(
            "value:0 flat", words, f"{max(between):,} bytes from a node", f"{across:,.0f} bytes, 2(M − 1)/M · S"
        )
    for node, sent in enumerate(between):
        if sent > across + per_node * within:
            times = (
                f"{sent / across:.1f} times what it has to" if across else "something, though there is no other node"
            )
            words = "add up inside the node first, then every rank takes only its share of S/L to the other nodes"
            yield Broken(
                "value:1 across",
                f"node {node} sends {times}: {words}",
                f"{sent:,} bytes",
                f"{across:,.0f} bytes, 2(M − 1)/M · S",
            )
    for rank, facts in enumerate(world):
        partners = {to for to, _ in abroad[rank]}
        if any(to % per_node != rank % per_node for to in partners):
            words = (
                "it sends to another local rank of another node: its partners there are the ranks with its own local "
            )
            words += "rank, which hold the same share"
            yield Broken("value:2 partners", words, f"it sends to {sorted(partners)}", rank=rank)
        if (carried := sum(size for _, size in abroad[rank])) > across / per_node + within:
            words = "it carries more than its share between the nodes, while the others of its node wait: "
            words += f"each of the {per_node} ranks takes S/L"
            yield Broken(
                "value:3 share", words, f"{carried:,} bytes", f"about {across / per_node:,.0f} bytes", rank=rank
            )
        inside = sum(size for _, size in sends_of(facts)) - carried
        target = 2 * (per_node - 1) / per_node * whole
        if abs(inside - target) > inside_within:
            much = "more" if inside > target else "less"
            words = f"it sends inside its node {much} than it should, 2(L − 1)/L · S"
            yield Broken(
                "value:4 inside",
                words,
                f"{inside:,} bytes",
                f"{target:,.0f} bytes, give or take {inside_within:,}",
                rank=rank,
            )
    yield from ring_messages.judge_memory(case, world, [share] * len(world), "a share of S/L")


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    shapes = dict.fromkeys(f"{case['nodes']} × {case['ranks per node']}" for case, _ in played)
    return {
        "shapes (nodes × ranks)": ", ".join(shapes),
        "all-reduces": len(played),
        "memory": "the tensor and one share",
    }


CONTRACT = Contract(
    name="parameter_server_and_all_reduce.levels",
    rules={"hierarchical_all_reduce": Rules(changes=("tensor.value",), wire=_wire, same_calls=False)},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *ring_messages.FIRST,
        *(one for one in ring_messages.MESSAGES if one[0] != "wire:peer *"),
        ("value:0 *", "{}"),
        ("value:[a-z]*", "{}"),
        ("value:*", "{}"),
        ("state:around*", "it writes beyond the ends of its tensor, where other numbers are"),
    ),
    figures=figures,
)
