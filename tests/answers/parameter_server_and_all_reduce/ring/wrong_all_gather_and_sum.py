import torch
import torch.distributed as dist

REJECTED_WITH = "calls all_gather, a collective"


def ring_all_reduce(tensor):
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    tensor.copy_(sum(everyone))
