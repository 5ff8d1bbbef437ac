import torch.distributed as dist

REJECTED_WITH = "the two groups are swapped"


def make_groups(nodes, per_node):
    node, local = divmod(dist.get_rank(), per_node)
    by_node = [dist.new_group([n * per_node + k for k in range(per_node)]) for n in range(nodes)]
    by_local = [dist.new_group([n * per_node + k for n in range(nodes)]) for k in range(per_node)]
    return by_local[local], by_node[node]
