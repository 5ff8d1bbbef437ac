import torch


import torch.distributed as dist


from checks.labs import single_vs_multi_node as check


from utils import draw


def rank_of(node_rank, local_rank, counts):
    ### BEGIN SOLUTION
    return sum(counts[:node_rank]) + local_rank


def coordinates_of(rank, counts):
    ### BEGIN SOLUTION
    node, local = 0, rank
    while local >= counts[node]:
        local -= counts[node]
        node += 1
    return node, local, sum(counts)


def make_groups(nodes, per_node):
    ### BEGIN SOLUTION
    node_rank, local_rank = divmod(dist.get_rank(), per_node)
    node_groups = [dist.new_group([n * per_node + k for k in range(per_node)]) for n in range(nodes)]
    cross_groups = [dist.new_group([n * per_node + k for n in range(nodes)]) for k in range(per_node)]
    return node_groups[node_rank], cross_groups[local_rank]


def all_reduce_in_levels(tensor, node_group, cross_group):
    ### BEGIN SOLUTION
    share = torch.empty_like(tensor[: len(tensor) // node_group.size()])
    dist.reduce_scatter_tensor(share, tensor, group=node_group)
    dist.all_reduce(share, group=cross_group)
    dist.all_gather_into_tensor(tensor, share, group=node_group)


def ring_time(nbytes, nodes, per_node, inside, between):
    ### BEGIN SOLUTION
    ranks = nodes * per_node
    steps = []
    if per_node > 1:
        bytes_per_s = inside["GB_per_s_both_directions"] * 1e9 / 2
        steps.append(inside["alpha_us"] * 1e-6 + nbytes / ranks / bytes_per_s)
    if nodes > 1:
        bytes_per_s = between["Gbit_per_s"] * 1e9 / 8
        steps.append(between["alpha_us"] * 1e-6 + nbytes / ranks / bytes_per_s)
    return 2 * (ranks - 1) * max(steps, default=0.0)


def hierarchical_time(nbytes, nodes, per_node, inside, between):
    ### BEGIN SOLUTION
    part = nbytes / per_node
    bytes_per_s = inside["GB_per_s_both_directions"] * 1e9 / 2
    scatter = (per_node - 1) * (inside["alpha_us"] * 1e-6 + part / bytes_per_s)
    share_of_card = between["Gbit_per_s"] * 1e9 / 8 / per_node
    across = 2 * (nodes - 1) * (between["alpha_us"] * 1e-6 + part / nodes / share_of_card)
    return scatter + across + scatter


def diagnose(environments):
    ### BEGIN SOLUTION
    host, before, found = environments[0], [], []
    for rank, one in enumerate(environments):
        should_be = {
            "RANK": str(rank),
            "LOCAL_RANK": str(before.count(one["NODE_ADDR"])),
            "WORLD_SIZE": str(len(environments)),
            "MASTER_ADDR": host["NODE_ADDR"],
            "MASTER_PORT": host["MASTER_PORT"],
        }
        before.append(one["NODE_ADDR"])
        found += [(rank, name) for name, value in should_be.items() if one[name] != value]
    return found
