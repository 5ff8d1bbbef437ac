"""Reads the flags while they are still travelling."""

import torch
import torch.distributed as dist

REJECTED_WITH = "the ranks do not call the same collectives"


def average_used(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    work = dist.all_reduce(used, async_op=True)
    flags = used.tolist()
    work.wait()
    for parameter, users in zip(parameters, flags, strict=True):
        if users:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
