import torch
import torch.distributed as dist

REJECTED_WITH = "wait for each other in a circle"


def shift(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return tensor.clone()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    got = torch.empty_like(tensor)
    dist.recv(got, left)
    dist.send(tensor, right)
    return got
