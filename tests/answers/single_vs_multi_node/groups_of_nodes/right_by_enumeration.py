def make_groups(nodes, per_node):
    import torch
    import torch.distributed as dist

    ranks = torch.arange(nodes * per_node).view(nodes, per_node)
    node_group, _ = dist.new_subgroups_by_enumeration(ranks.tolist())
    cross_group, _ = dist.new_subgroups_by_enumeration(ranks.t().tolist())
    return node_group, cross_group
