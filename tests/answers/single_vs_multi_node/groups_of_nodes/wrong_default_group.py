import torch.distributed as dist

REJECTED_WITH = "the node group is the group of all ranks"


def make_groups(nodes, per_node):
    return dist.group.WORLD, dist.group.WORLD
