import torch.distributed as dist

REJECTED_WITH = "where a process group is wanted"


def make_groups(nodes, per_node):
    node, local = divmod(dist.get_rank(), per_node)
    return list(range(node * per_node, (node + 1) * per_node)), list(range(local, nodes * per_node, per_node))
