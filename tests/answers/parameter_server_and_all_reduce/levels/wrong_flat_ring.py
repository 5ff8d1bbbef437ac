import torch
import torch.distributed as dist

REJECTED_WITH = "this is one flat ring through all ranks"


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
    everybody, rank = list(range(nodes * per_node)), dist.get_rank()
    chunks = tensor.tensor_split(nodes * per_node)
    around(chunks, everybody, rank, adds=True)
    around(chunks, everybody, rank + 1, adds=False)
