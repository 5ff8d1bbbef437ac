import torch.distributed as dist

REJECTED_WITH = "make_groups returns two groups"


def make_groups(nodes, per_node):
    by_node = [dist.new_group([n * per_node + k for k in range(per_node)]) for n in range(nodes)]
    return by_node[dist.get_rank() // per_node]
