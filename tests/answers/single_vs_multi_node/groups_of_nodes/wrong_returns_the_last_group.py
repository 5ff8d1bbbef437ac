import torch.distributed as dist

REJECTED_WITH = "keep the one whose ranks contain your own"


def make_groups(nodes, per_node):
    for n in range(nodes):
        node_group = dist.new_group([n * per_node + k for k in range(per_node)])
    for k in range(per_node):
        cross_group = dist.new_group([n * per_node + k for n in range(nodes)])
    return node_group, cross_group
