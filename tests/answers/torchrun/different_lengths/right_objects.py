import torch
import torch.distributed as dist


def gather_all(predictions):
    world_size = dist.get_world_size()
    parts = [None] * world_size
    dist.all_gather_object(parts, predictions)
    return torch.cat(parts)
