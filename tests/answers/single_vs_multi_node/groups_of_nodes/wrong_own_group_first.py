import torch.distributed as dist

REJECTED_WITH = "all ranks must make the groups in the same order"


def make_groups(nodes, per_node):
    node, local = divmod(dist.get_rank(), per_node)
    nodes_mine_first = sorted(range(nodes), key=lambda n: n != node)
    locals_mine_first = sorted(range(per_node), key=lambda k: k != local)
    by_node = {n: dist.new_group([n * per_node + k for k in range(per_node)]) for n in nodes_mine_first}
    by_local = {k: dist.new_group([n * per_node + k for n in range(nodes)]) for k in locals_mine_first}
    return by_node[node], by_local[local]
