"""Check of ``make_groups``: the two process groups of every rank, and how many are made for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from checks.engine import Reference, exercise, refuse, watched
from checks.engine.plain import kind_of
from checks.engine.watching import explained

NODE, CROSS = "[n * per_node + k for k in range(per_node)]", "[n * per_node + k for n in range(nodes)]"
MINE = "node_rank, local_rank = divmod(dist.get_rank(), per_node)"
RETURN = "return node_groups[node_rank], cross_groups[local_rank]"
OFFICIAL = Reference("single_vs_multi_node", "make_groups", {
    "the two groups are swapped: first that of my node, then that across the nodes":
        {RETURN: "return cross_groups[local_rank], node_groups[node_rank]"},
    "the node group is the group of all ranks": {"return node_groups[node_rank]": "return dist.group.WORLD"},
    "the cross group is the group of all ranks": {", cross_groups[local_rank]": ", dist.group.WORLD"},
    "ranks on one node are neighbours: the node is rank // per_node, not rank % nodes":
        {MINE: "local_rank, node_rank = divmod(dist.get_rank(), nodes)", NODE: "range(n, nodes * per_node, nodes)",
         CROSS: "range(k * nodes, (k + 1) * nodes)"},
    "ranks with the same local rank are per_node apart, not nodes: so many ranks are on a node":
        {CROSS: "range(k, nodes * per_node, nodes)"},
    "new_group gives every rank a value for every group: keep those in which your rank is, not the first":
        {RETURN: "return node_groups[0], cross_groups[0]"},
})  # fmt: skip
CASES = [{"nodes": nodes, "per_node": per_node} for nodes, per_node in ((2, 3), (3, 2), (6, 1), (1, 6))]
RULE = "Every rank must call new_group for every group, member or not, and in the same order"


@exercise(OFFICIAL, CASES, title="Groups per node and across nodes", difficulty=2, minutes=20, ranks=(6,))
def groups_of_nodes(case: dict[str, Any], make_groups: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``make_groups(nodes, per_node)``, which returns this rank's two process groups."""
    most = case["nodes"] + case["per_node"]
    with explained(RULE), watched() as seen:
        made = make_groups(case["nodes"], case["per_node"])
    two = isinstance(made, list | tuple) and len(made) == 2
    fault = "make_groups returns two groups: that of my node, and that across the nodes"
    refuse(not two, fault, measured=kind_of(made))
    asked = sum(call["name"] == "new_group" for call in seen.calls)
    fault = "more groups are made than one for each node and one for each local rank"
    refuse(asked > most, fault, measured=asked, expected=most)
    return {f"the {name} group": _members(one, name) for name, one in zip(("node", "cross"), made, strict=True)}


def _members(group: Any, name: str) -> Any:
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return "a group that this rank is not in"
    fault = f"the {name} group that make_groups returns is no process group, as dist.new_group gives it"
    refuse(not isinstance(group, dist.ProcessGroup), fault, measured=kind_of(group))
    return sorted(dist.get_process_group_ranks(group))
