import torch.distributed as dist

REJECTED_WITH = "calls all_reduce, a collective"


def hierarchical_all_reduce(tensor, nodes, per_node):
    node, local = divmod(dist.get_rank(), per_node)
    by_node = [dist.new_group([n * per_node + k for k in range(per_node)]) for n in range(nodes)]
    by_local = [dist.new_group([n * per_node + k for n in range(nodes)]) for k in range(per_node)]
    dist.all_reduce(tensor, group=by_node[node])
    dist.all_reduce(tensor, group=by_local[local])
