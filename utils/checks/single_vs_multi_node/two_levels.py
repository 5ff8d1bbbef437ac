"""Exercise 3: ``all_reduce_in_levels(tensor, node_group, cross_group)``, in the groups that a learner has made."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from utils.checks.contracts import Amount, Broken, Case, Contract, Facts, Rules, compare
from utils.checks.single_vs_multi_node import groups

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter",
               "barrier")  # fmt: skip


def draw(rng: random.Random) -> list[Case]:
    """Shapes that are not square, one node, one process on each; some numbers for each rank, two types."""
    shapes = [(2, 3), (3, 2), (2, 2), rng.choice(((1, 3), (3, 1)))]
    return [
        {"ranks": nodes * per_node, "nodes": nodes, "processes on each": per_node,
         "numbers": nodes * per_node * rng.randint(1, 40), "type": rng.choice(("float32", "float64")),
         "seed": rng.getrandbits(30)}
        for nodes, per_node in shapes
    ]  # fmt: skip


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist

    groups.scene(case, watch, facts)
    everyone: list[Any] = [None] * case["ranks"]
    dist.all_gather_object(everyone, not list(groups.judge_rank(case, dist.get_rank(), facts)))
    if not all(everyone):
        return
    facts["calls"], facts["before"], facts["after"] = [], [], []
    for turn in range(2):
        generator = torch.Generator().manual_seed(case["seed"] + 100 * turn + dist.get_rank())
        tensor = torch.randn(case["numbers"], generator=generator, dtype=getattr(torch, case["type"]))
        facts["before"].append(tensor.clone())
        with watch.step("all_reduce_in_levels", tensor=tensor):
            watch.answers["all_reduce_in_levels"](tensor, *watch.made)
        facts["calls"].append([{k: one[k] for k in ("name", "bytes", "members")} for one in watch.records[-1]["calls"]])
        facts["after"].append(tensor)


def _sent(call: Facts) -> float:
    """Bytes that a rank sends in a collective that goes as a ring, as the lecture on all-reduces counts them."""
    size, nbytes = len(call["members"]), call["bytes"]
    if call["name"] == "all_reduce":
        return 2 * (size - 1) / size * nbytes
    if call["name"] in ("reduce_scatter", "all_to_all"):
        return (size - 1) / size * nbytes
    return (size - 1) * nbytes if call["name"] == "all_gather" else nbytes * (size > 1)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    yield from groups.judge(case, world)
    nodes, per_node = case["nodes"], case["processes on each"]
    for turn in range(len(world[0].get("after", []))):
        terms = [facts["before"][turn] for facts in world]
        whole = terms[0].nbytes
        for rank, facts in enumerate(world):
            where = {"rank": rank, "call": turn + 1}
            mine = [one for other, one in enumerate(terms) if other // per_node == rank // per_node]
            like_me = [one for other, one in enumerate(terms) if other % per_node == rank % per_node]
            guesses = {
                "is the sum of this node only": sum(mine),
                "is the sum across the nodes only": sum(like_me),
                "is not touched: the sum has to be in the tensor itself": terms[rank],
                "is the mean: only the sum is asked for": sum(terms) / len(terms),
            }
            yield from compare("value:sum", "the tensor", facts["after"][turn], terms, guesses=guesses, **where)
            across = [len({one // per_node for one in call["members"]}) > 1 for call in facts["calls"][turn]]
            sent = [_sent(call) for call in facts["calls"][turn]]
            far, near = (sum(n for n, a in zip(sent, across, strict=True) if a is kind) for kind in (True, False))
            targets = 2 * (nodes - 1) / nodes * whole / per_node, 2 * (per_node - 1) / per_node * whole
            if far > targets[0] + 1:
                words = "more bytes go between the nodes than 2(N − 1)/N · S/L: every rank takes only its share there"
                yield Broken("value:far", words, f"{far:,.0f} bytes", f"{targets[0]:,.0f} bytes", **where)
            elif near > targets[1] + 1:
                words = (
                    "more bytes go inside the nodes than 2(L − 1)/L · S: first each rank gets the node's sum of its "
                )
                words += "share, and at the end the shares are handed round"
                yield Broken("value:near", words, f"{near:,.0f} bytes", f"{targets[1]:,.0f} bytes", **where)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, world = played[0]
    whole = world[0]["before"][0].nbytes
    sent = 2 * (case["nodes"] - 1) / case["nodes"] * whole / case["processes on each"]
    ring = 2 * (case["ranks"] - 1) / case["ranks"] * whole
    return {
        f"a rank of 2 × 3 sends to other nodes, of {whole:,} bytes": f"{sent:,.0f}",
        "a ring through all ranks sends": f"{ring:,.0f}",
    }


CONTRACT = Contract(
    name="single_vs_multi_node.two_levels",
    rules=groups.CONTRACT.rules
    | {
        "all_reduce_in_levels": Rules(
            changes=("tensor.value",), wire=lambda *_: {one: Amount(50, 10**9, 0, some=True) for one in COLLECTIVES}
        )
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *groups.CONTRACT.mistakes[:2],
        ("wire:*", "{}"),
        ("value:far", "{}"),
        ("value:near", "{}"),
        ("value:*", "{}"),
    ),
    figures=figures,
)
