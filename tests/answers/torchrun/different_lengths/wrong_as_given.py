import torch
import torch.distributed as dist

REJECTED_WITH = "gloo itself gives up"


def gather_all(predictions):
    world_size = dist.get_world_size()
    parts = [torch.empty_like(predictions) for _ in range(world_size)]
    dist.all_gather(parts, predictions)
    return torch.cat(parts)
