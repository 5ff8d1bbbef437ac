import torch
import torch.distributed as dist

REJECTED_WITH = "does a rank wait for another that never comes?"


def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = tensor.tensor_split(size)
    place = torch.empty_like(chunks[0])
    for step in range(size - 1):
        theirs = chunks[(rank - step - 1) % size]
        dist.recv(place[: len(theirs)], left)
        dist.send(chunks[(rank - step) % size], right)
        theirs += place[: len(theirs)]
    for step in range(size - 1):
        dist.recv(chunks[(rank - step) % size], left)
        dist.send(chunks[(rank - step + 1) % size], right)
