import torch
import torch.distributed as dist

REJECTED_WITH = "the ranks do not call the same collectives"


def average_used(model):
    mine = [p for p in model.parameters() if p.requires_grad and p.grad is not None]
    used = torch.ones(len(mine))
    dist.all_reduce(used)
    for parameter in mine:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
