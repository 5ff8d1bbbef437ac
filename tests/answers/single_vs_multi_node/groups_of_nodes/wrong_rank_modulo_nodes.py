import torch.distributed as dist

REJECTED_WITH = "the node is rank // per_node, not rank % nodes"


def make_groups(nodes, per_node):
    rank = dist.get_rank()
    by_node = [dist.new_group(list(range(n, nodes * per_node, nodes))) for n in range(nodes)]
    by_local = [dist.new_group([n * per_node + k for n in range(nodes)]) for k in range(per_node)]
    return by_node[rank % nodes], by_local[rank % per_node]
