import torch.distributed as dist

REJECTED_WITH = "The tensor that was given is changed"


def shift(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return tensor.clone()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    sending = dist.isend(tensor.clone(), right)
    got = tensor
    dist.recv(got, left)
    sending.wait()
    return got
