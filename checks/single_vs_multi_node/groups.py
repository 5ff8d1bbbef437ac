"""Exercise 2: ``make_groups(nodes, per_node)``, called on every rank at once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules


def draw(rng: random.Random) -> list[Case]:
    """Where nodes and processes differ in number, mistakes show; and a second call, for another shape."""
    wide = rng.choice(((2, 3), (3, 2)))
    shapes = [(2, 3), (3, 2), wide, (2, 2), rng.choice(((1, 4), (4, 1))), rng.choice(((1, 3), (3, 1))), (1, 1)]
    return [
        {"ranks": nodes * per_node, "nodes": nodes, "processes on each": per_node, "seed": rng.getrandbits(30)}
        for nodes, per_node in shapes
    ]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist

    made = watch.call("make_groups", nodes=case["nodes"], per_node=case["processes on each"])
    watch.made = made
    facts["asked"] = [one["members"] for one in watch.records[-1]["calls"] if one["name"] == "new_group"]
    facts["kind"] = type(made).__name__ if not isinstance(made, tuple | list) else len(made)
    facts["groups"] = []
    for group in made if facts["kind"] == 2 else ():
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            facts["groups"].append("not a member")
        elif not isinstance(group, dist.ProcessGroup):
            facts["groups"].append(f"a {type(group).__name__}")
        elif group not in dist.distributed_c10d._world.pg_map:
            facts["groups"].append("a group that was destroyed")
        else:
            facts["groups"].append(list(dist.get_process_group_ranks(group)))
    everyone: list[Any] = [None] * case["ranks"]
    dist.all_gather_object(everyone, not list(judge_rank(case, dist.get_rank(), facts)))
    facts["sums"] = []
    for group in made if all(everyone) else ():  # (else ranks would wait for each other)
        total = torch.tensor([dist.get_rank()])
        dist.all_reduce(total, group=group)
        facts["sums"].append(int(total))


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for rank, facts in enumerate(world):
        if found := list(judge_rank(case, rank, facts)):
            yield from found
            return
        for name, members, total in zip(("node", "cross"), facts["groups"], facts["sums"], strict=False):
            if total != sum(members):
                words = f"an all-reduce in the {name} group does not add up what its members have"
                yield Broken("value:use", words, total, sum(members), rank=rank)


def judge_rank(case: Case, rank: int, facts: Facts) -> Iterator[Broken]:
    """What is wrong with the groups of one rank."""
    nodes, per_node = case["nodes"], case["processes on each"]
    if facts["kind"] != 2:
        words = "make_groups returns two groups: that of my node, and that across the nodes"
        yield Broken("returns:", words, facts["kind"], rank=rank)
        return
    node, local = divmod(rank, per_node)
    mine = list(range(node * per_node, (node + 1) * per_node))
    across = list(range(local, nodes * per_node, per_node))
    pairs = ((mine, across), (across, mine))
    for name, members, (wanted, other) in zip(("node", "cross"), facts["groups"], pairs, strict=True):
        if isinstance(members, str):
            yield Broken("returns:", _no_group(name, members), members, rank=rank)
        elif sorted(members) != wanted:
            words = _wrong_members(name, sorted(members), wanted, other, rank, nodes, case["ranks"])
            yield Broken("value:members", words, members, wanted, rank=rank)
    if len(facts["asked"]) > nodes + per_node:
        words = f"{nodes} × {per_node} needs one group per node and one per local rank, and no more"
        measured, expected = len(facts["asked"]), nodes + per_node
        yield Broken("value:number", words, f"{measured} groups", f"{expected} groups", rank=rank)


def _no_group(name: str, what: str) -> str:
    if what == "not a member":
        words = "new_group gives every rank a value for every group, so keep the one whose ranks contain your own"
        return f"make_groups returns a group that this rank is not in: {words}"
    return f"make_groups returns {what} as the {name} group, where a process group is wanted: what dist.new_group gave"


def _wrong_members(
    name: str, members: list[int], wanted: list[int], other: list[int], rank: int, nodes: int, ranks: int
) -> str:
    if len(members) == ranks:
        return f"the {name} group is the group of all ranks"
    if members == other:
        return "the two groups are swapped: first that of my node, then that across the nodes"
    if members == list(range(rank % nodes, ranks, nodes)):
        if name == "cross":
            return "ranks with the same local rank are per_node apart, not nodes: so many ranks are on a node"
        return "ranks on one node are neighbours: the node is rank // per_node, not rank % nodes"
    if rank not in members:
        return f"this rank is not in its own {name} group"
    return f"the {name} group has the wrong members"


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    shapes = dict.fromkeys(f"{case['nodes']} × {case['processes on each']}" for case, _ in played)
    return {"shapes": ", ".join(shapes), "groups checked": 2 * sum(case["ranks"] for case, _ in played)}


CONTRACT = Contract(
    name="single_vs_multi_node.groups_of_nodes",
    rules={
        "make_groups": Rules(
            changes=("around.the process groups",),
            # (A mesh of devices lets the ranks compare it; how many groups may be made is judged above.)
            wire=lambda *_: {"all_gather": Amount(9, 10_000, 0, some=True)},
        )
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        (
            "wire:disagree",
            "{}. Every rank must call new_group for every group, member or not, and in the same order",
        ),
        ("value:members", "{}"),
        ("wire:other *", "{}, beside dist.new_group"),
        ("value:*", "{}"),
    ),
    figures=figures,
)
