import torch
import torch.distributed as dist

REJECTED_WITH = "add in place"


def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = tensor.tensor_split(size)
    places = [torch.empty_like(chunk) for chunk in chunks]
    for step in range(size - 1):
        mine, theirs = chunks[(rank - step) % size], (rank - step - 1) % size
        sending = dist.isend(mine, right)
        dist.recv(places[theirs], left)
        sending.wait()
        chunks[theirs].add_(places[theirs])
    for step in range(size - 1):
        sending = dist.isend(chunks[(rank - step + 1) % size], right)
        dist.recv(chunks[(rank - step) % size], left)
        sending.wait()
