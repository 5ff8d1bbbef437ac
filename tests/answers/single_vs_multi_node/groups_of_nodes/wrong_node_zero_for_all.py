import torch.distributed as dist

REJECTED_WITH = "keep the one whose ranks contain your own"


def make_groups(nodes, per_node):
    by_node = [dist.new_group([n * per_node + k for k in range(per_node)]) for n in range(nodes)]
    by_local = [dist.new_group([n * per_node + k for n in range(nodes)]) for k in range(per_node)]
    return by_node[0], by_local[0]
