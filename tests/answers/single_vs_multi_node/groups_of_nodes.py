"""Exercise 2 of the lab on one node and several: a group for each node, and groups across. What is not here is in the official solution."""

import torch.distributed as dist
from known_answers import right, wrong

NODE, CROSS = "[n * per_node + k for k in range(per_node)]", "[n * per_node + k for n in range(nodes)]"
MADE = f"    node_groups = [dist.new_group({NODE}) for n in range(nodes)]\n"
RETURN = "    return node_groups[node_rank], cross_groups[local_rank]"
right("cross groups first", {MADE: "", RETURN: MADE + RETURN})


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


wrong("lists of ranks", "is no process group", {f"dist.new_group({NODE})": NODE})
wrong("a group for each rank", "more groups are made", {
    "for n in range(nodes)]\n    cross": "for m in range(nodes) for n in range(nodes)]\n    cross",
    "return node_groups[node_rank]": "return node_groups[node_rank - nodes]",
})  # fmt: skip
wrong("only members call", "must call new_group for every group", {
    "for n in range(nodes)]\n    cross": "for n in [node_rank]]\n    cross", "groups[node_rank]": "groups[0]"
})  # fmt: skip
wrong("own group first", "in the same order", {
    "for n in range(nodes)]\n    cross":
    "for n in [node_rank, *(m for m in range(nodes) if m != node_rank)]]\n    cross", "groups[node_rank]": "groups[0]"
})  # fmt: skip
wrong("two nodes of two", "a group that this rank is not in", {"dist.get_rank(), per": "dist.get_rank() % 4, per"})
