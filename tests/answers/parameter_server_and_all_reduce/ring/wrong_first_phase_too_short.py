import torch
import torch.distributed as dist

REJECTED_WITH = "numbers are missing in element"


def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = tensor.tensor_split(size)
    place = torch.empty_like(chunks[0])
    for step in range(size - 2):
        mine, theirs = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        sending = dist.isend(mine, right)
        dist.recv(place[: len(theirs)], left)
        sending.wait()
        theirs += place[: len(theirs)]
    for step in range(size - 1):
        mine, theirs = chunks[(rank - step + 2) % size], chunks[(rank - step + 1) % size]
        sending = dist.isend(mine, right)
        dist.recv(theirs, left)
        sending.wait()
