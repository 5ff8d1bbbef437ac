import torch
import torch.distributed as dist

REJECTED_WITH = "which hands the finished chunks out, is missing or too short"


def around(chunks, members, first, adds):
    """One round through the members; adds up or overwrites."""
    size, me = len(members), members.index(dist.get_rank())
    place = torch.empty_like(chunks[0])
    for step in range(size - 1):
        mine, theirs = chunks[(first - step) % size], chunks[(first - step - 1) % size]
        sending = dist.isend(mine, members[(me + 1) % size])
        dist.recv(place[: len(theirs)] if adds else theirs, members[me - 1])
        sending.wait()
        if adds:
            theirs += place[: len(theirs)]


def hierarchical_all_reduce(tensor, nodes, per_node):
    node, local = divmod(dist.get_rank(), per_node)
    inside = [node * per_node + k for k in range(per_node)]
    across = [n * per_node + local for n in range(nodes)]
    shares = tensor.tensor_split(per_node)
    around(shares, inside, local, adds=True)
    mine = shares[(local + 1) % per_node].tensor_split(nodes)
    around(mine, across, node, adds=True)
    around(mine, across, node + 1, adds=False)
