import torch
import torch.distributed as dist

REJECTED_WITH = "gloo cannot send to itself"


def shift(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    got = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % world_size)
    dist.recv(got, (rank - 1) % world_size)
    sending.wait()
    return got
