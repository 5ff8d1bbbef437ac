"""Exercise 2 of the lab on one node and several: a group for each node, and groups across the nodes."""

# ruff: noqa: F401 (modules that changed answers use)
import os

import torch
import torch.distributed as dist
from known_answers import right, wrong


def make_groups(nodes, per_node):
    node_rank, local_rank = divmod(dist.get_rank(), per_node)
    node_groups = [dist.new_group([n * per_node + k for k in range(per_node)]) for n in range(nodes)]
    cross_groups = [dist.new_group([n * per_node + k for n in range(nodes)]) for k in range(per_node)]
    return node_groups[node_rank], cross_groups[local_rank]


NODE = "[n * per_node + k for k in range(per_node)]"
CROSS = "[n * per_node + k for n in range(nodes)]"
MINE = "    node_rank, local_rank = divmod(dist.get_rank(), per_node)\n"
RETURN = "    return node_groups[node_rank], cross_groups[local_rank]"


# --- right, and written differently

right("a list; ranks in another order", {
    RETURN: "    return [node_groups[node_rank], cross_groups[local_rank]]",
    NODE: "list(reversed(range(n * per_node, (n + 1) * per_node)))"
})  # fmt: skip
right("cross groups first", {
    "    return node_groups": "    return (node_groups", "cross_groups[local_rank]": "cross_groups[local_rank])",
    "    node_groups = [dist.new_group([n * per_node + k for k in range(per_node)]) for n in range(nodes)]\n": "",
    "range(per_node)]\n    return": "range(per_node)]\n"
    "    node_groups = [dist.new_group([n * per_node + k for k in range(per_node)]) for n in range(nodes)]\n    return",
})  # fmt: skip
right("ranges, by name", {f"dist.new_group({CROSS})": "dist.new_group(ranks=range(k, nodes * per_node, per_node))"})


@right("by enumeration")
def by_enumeration():
    def make_groups(nodes, per_node):
        ranks = torch.arange(nodes * per_node).view(nodes, per_node)
        node_group, _ = dist.new_subgroups_by_enumeration(ranks.tolist())
        cross_group, _ = dist.new_subgroups_by_enumeration(ranks.t().tolist())
        return node_group, cross_group

    return (make_groups,)


@right("a mesh of devices")
def mesh_of_devices():
    def make_groups(nodes, per_node):
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (nodes, per_node), mesh_dim_names=("cross", "node"))
        return mesh.get_group("node"), mesh.get_group("cross")

    return (make_groups,)


@right("only members meet")
def only_members_meet():
    def make_groups(nodes, per_node):
        node, local = divmod(dist.get_rank(), per_node)
        mine = [node * per_node + k for k in range(per_node)]
        like_me = [n * per_node + local for n in range(nodes)]
        return [dist.new_group(ranks, use_local_synchronization=True) for ranks in (mine, like_me)]

    return (make_groups,)


# --- wrong

wrong("swapped", "the two groups are swapped", {RETURN: "    return cross_groups[local_rank], node_groups[node_rank]"})
wrong("neighbours are taken for other nodes", "the node is rank // per_node", {
    MINE: "    local_rank, node_rank = divmod(dist.get_rank(), nodes)\n", NODE: "range(n, nodes * per_node, nodes)",
    CROSS: "range(k * nodes, (k + 1) * nodes)"
})  # fmt: skip
wrong("the first node for all", "that this rank is not in", {"node_groups[node_rank]": "node_groups[0]"})
wrong("the last one made", "that this rank is not in", {RETURN: "    return node_groups[-1], cross_groups[-1]"})
wrong("the default group", "is the group of all ranks", {"node_groups[node_rank]": "dist.group.WORLD"})
wrong("lists of ranks", "returns a list as the node group", {"dist.new_group(" + NODE + ")": NODE})
wrong("one group", "returns two groups", {RETURN: "    return node_groups[node_rank]"})
wrong("three groups", "returns two groups", {RETURN: RETURN + ", None"})
wrong("nothing", "returns two groups", {RETURN: "    node_groups[node_rank], cross_groups[local_rank]"})
wrong("a name in place of a group", "returns a str as the node group", {"node_groups[node_rank]": "'node'"})
wrong("one neighbour only", "has the wrong members", {NODE: "[n * per_node + k for k in range(min(2, per_node))]"})
wrong("two nodes only", "has the wrong members", {CROSS: "[n * per_node + k for n in range(min(2, nodes))]"})
wrong("a group for each rank", "and no more", {
    "for n in range(nodes)]\n    cross": "for m in range(nodes) for n in range(nodes)]\n    cross",
    "node_groups[node_rank]": "node_groups[node_rank - nodes]"
})  # fmt: skip
wrong("made twice", "and no more", {RETURN: "    dist.new_group([0])\n" + RETURN})
wrong("only members call", "Every rank must call new_group for every group", {
    "for n in range(nodes)]\n    cross": "for n in [node_rank]]\n    cross", "node_groups[node_rank]": "node_groups[0]"
})  # fmt: skip
wrong("own group first", "in the same order", {
    "for n in range(nodes)]\n    cross": "for n in [node_rank, *(m for m in range(nodes) if m != node_rank)]]\n    cross",
    "node_groups[node_rank]": "node_groups[0]"
})  # fmt: skip
wrong("rank 0 makes one less", "Every rank must call new_group", {
    "for k in range(per_node)]\n    return": "for k in range(per_node) if dist.get_rank() or k < per_node - 1 or k == 0]\n    return"
})  # fmt: skip
wrong("a barrier more", "calls dist.barrier", {RETURN: "    dist.barrier()\n" + RETURN})
wrong(
    "by the environment",
    "raised KeyError",
    {MINE: "    node_rank, local_rank = int(os.environ['NODE']), int(os.environ['LOCAL'])\n"},
)
wrong("by a file", "writes a file", {RETURN: "    open('groups', 'w').close()\n" + RETURN})
wrong(
    "two nodes of two",
    "that this rank is not in",
    {MINE: "    node_rank, local_rank = divmod(dist.get_rank() % 4, 2)\n"},
)


wrong("destroyed again", "a group that was destroyed", {
    RETURN: "    dist.destroy_process_group(cross_groups[local_rank])\n" + RETURN
})  # fmt: skip
wrong("a backend that does nothing", "does not add up what its members have", {
    MINE: MINE + "    import torch.testing._internal.distributed.fake_pg\n", CROSS: CROSS + ", backend='fake'"
})  # fmt: skip
wrong("across in steps of nodes", "are per_node apart", {CROSS: "range(k, nodes * per_node, nodes)"})


@right("torch's subgroups")
def subgroups():
    def make_groups(nodes, per_node):
        mine, _ = dist.new_subgroups(group_size=per_node)
        ranks = [list(range(k, nodes * per_node, per_node)) for k in range(per_node)]
        return mine, dist.new_subgroups_by_enumeration(ranks)[0]

    return (make_groups,)
