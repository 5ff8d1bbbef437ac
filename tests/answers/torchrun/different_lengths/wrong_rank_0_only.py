import torch
import torch.distributed as dist

REJECTED_WITH = "this one returns None"


def gather_all(predictions):
    world_size = dist.get_world_size()
    parts = [None] * world_size if dist.get_rank() == 0 else None
    dist.gather_object(predictions, parts)
    if dist.get_rank() == 0:
        return torch.cat(parts)
