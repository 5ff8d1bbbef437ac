"""Exercise 3: ``all_reduce_in_levels(tensor, node_group, cross_group)``, in the groups that a learner has made."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules, compare
from checks.single_vs_multi_node import groups

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter",
               "barrier")  # fmt: skip


def draw(rng: random.Random) -> list[Case]:
    """Shapes that are not square, one node, one process on each; some numbers for each rank, two types."""
    shapes = [(2, 3), (3, 2), (2, 2), (1, 3), (3, 1)]
    types = rng.sample(("float32", "float64"), 2)
    cases = []
    for number, (nodes, per_node) in enumerate(shapes):
        case = {"ranks": nodes * per_node, "nodes": nodes, "processes on each": per_node}
        first, other = (case["ranks"] * length for length in rng.sample(range(1, 41), 2))
        cases.append(case | {"numbers": [first, other, first], "type": types[number % 2], "seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist

    groups.scene(case, watch, facts)
    if not facts["sums"]:
        return
    facts["calls"], facts["before"], facts["after"] = [], [], []
    for turn, length in enumerate(case["numbers"]):
        generator = torch.Generator().manual_seed(case["seed"] + 100 * turn + dist.get_rank())
        tensor = torch.randn(length, generator=generator, dtype=getattr(torch, case["type"]))
        if turn == 1 and dist.get_rank() == case["seed"] % case["ranks"]:
            tensor.zero_()  # a rank with nothing to add takes part all the same
        if turn == 2 and dist.get_rank() == case["seed"] % case["ranks"]:
            tensor[case["seed"] % length] = (math.nan, math.inf)[case["seed"] % 2]
        facts["before"].append(tensor.clone())
        with watch.step("all_reduce_in_levels", tensor=tensor):
            watch.answers["all_reduce_in_levels"](tensor, *watch.made)
        facts["calls"].append([{k: one[k] for k in ("name", "bytes", "members")} for one in watch.records[-1]["calls"]])
        facts["after"].append(tensor)


def _sent(call: Facts) -> float:
    """Bytes that a rank sends in a collective that goes as a ring, as the lecture on all-reduces counts them."""
    size, nbytes = max(len(call["members"]), 1), call["bytes"]  # (a message has no members, and is refused anyway)
    if call["name"] == "all_reduce":
        return 2 * (size - 1) / size * nbytes
    if call["name"] == "all_gather":
        return (size - 1) * nbytes
    return (size - 1) / size * nbytes  # from or to one rank: along the ring, all but one send; in turn, say


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
            for call in facts["calls"][turn]:
                own = (
                    sorted(rank // per_node * per_node + k for k in range(per_node)),
                    list(range(rank % per_node, len(world), per_node)),
                )
                if call["name"] != "new_group" and sorted(call["members"]) not in own:
                    words = f"calls dist.{call['name']} in another group: the node group and the cross group are enough"
                    yield Broken("value:group", words, call["members"], f"{own[0]} or {own[1]}", **where)
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
        (
            "wire:disagree",
            "{}. All ranks call the same collectives, and new_group for all groups, in the same order",
        ),
        ("value:members", "{}"),
        ("wire:*", "{}"),
        ("value:far", "{}"),
        ("value:group", "all_reduce_in_levels {}"),
        ("value:near", "{}"),
        ("value:*", "{}"),
    ),
    figures=figures,
)
