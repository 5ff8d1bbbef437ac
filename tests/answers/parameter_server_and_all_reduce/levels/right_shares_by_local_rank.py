"""Inside a node everybody sends each share straight to the rank that adds it up; between the nodes too."""

import torch
import torch.distributed as dist


def add_up(parts, members):
    """Part i of all members goes to member i, one partner after the other."""
    size, me = len(members), members.index(dist.get_rank())
    place = torch.empty_like(parts[me])
    for distance in range(1, size):
        sending = dist.isend(parts[(me + distance) % size], members[(me + distance) % size])
        dist.recv(place, members[(me - distance) % size])
        sending.wait()
        parts[me].add_(place)


def hand_out(parts, members):
    """Part i goes from member i to all others."""
    size, me = len(members), members.index(dist.get_rank())
    for distance in range(1, size):
        sending = dist.isend(parts[me], members[(me + distance) % size])
        dist.recv(parts[(me - distance) % size], members[(me - distance) % size])
        sending.wait()


def hierarchical_all_reduce(tensor, nodes, per_node):
    node, local = divmod(dist.get_rank(), per_node)
    my_node = list(range(node * per_node, (node + 1) * per_node))
    like_me = list(range(local, nodes * per_node, per_node))
    shares = tensor.tensor_split(per_node)
    parts = shares[local].tensor_split(nodes)
    add_up(shares, my_node)
    add_up(parts, like_me)
    hand_out(parts, like_me)
    hand_out(shares, my_node)
