import torch.distributed as dist

REJECTED_WITH = "calls all_reduce, a collective"


def ring_all_reduce(tensor):
    dist.all_reduce(tensor)
