import torch
import torch.distributed as dist

REJECTED_WITH = "all_gather moves more than that"


def shift(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return tensor.clone()
    left = (rank - 1) % world_size
    parts = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(parts, tensor)
    got = parts[left]
    return got
