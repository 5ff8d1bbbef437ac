import torch
import torch.distributed as dist

REJECTED_WITH = "was begun and never waited for"


def shift(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return tensor.clone()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    got = torch.empty_like(tensor)
    dist.isend(tensor, right)
    dist.irecv(got, left)
    return got
