import torch
import torch.distributed as dist

REJECTED_WITH = "carries more than its share between the nodes"


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
    leader = node * per_node
    if local > 0:
        dist.send(tensor, leader)
        dist.recv(tensor, leader)
        return
    place = torch.empty_like(tensor)
    for other in range(1, per_node):
        dist.recv(place, leader + other)
        tensor += place
    chunks, leaders = tensor.tensor_split(nodes), [n * per_node for n in range(nodes)]
    around(chunks, leaders, node, adds=True)
    around(chunks, leaders, node + 1, adds=False)
    for other in range(1, per_node):
        dist.send(tensor, leader + other)
