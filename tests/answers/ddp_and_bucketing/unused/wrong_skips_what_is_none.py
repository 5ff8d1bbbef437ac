"""Rank 2 skips an expert that ranks 0 and 1 wait for."""

import torch.distributed as dist

REJECTED_WITH = "the ranks do not call the same collectives"


def average_used(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
