import torch.distributed as dist

REJECTED_WITH = "every rank must call new_group for every group, member or not"


def make_groups(nodes, per_node):
    node, local = divmod(dist.get_rank(), per_node)
    node_group = dist.new_group([node * per_node + k for k in range(per_node)])
    cross_group = dist.new_group([n * per_node + local for n in range(nodes)])
    return node_group, cross_group
