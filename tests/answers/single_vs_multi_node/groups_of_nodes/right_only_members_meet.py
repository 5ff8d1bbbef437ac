import torch.distributed as dist


def make_groups(nodes, per_node):
    node, local = divmod(dist.get_rank(), per_node)
    mine = [node * per_node + k for k in range(per_node)]
    like_me = [n * per_node + local for n in range(nodes)]
    return [dist.new_group(ranks, use_local_synchronization=True) for ranks in (mine, like_me)]
