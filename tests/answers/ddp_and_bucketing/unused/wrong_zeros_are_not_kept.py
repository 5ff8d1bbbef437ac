"""A rank that has not used a parameter helps the others, and keeps nothing."""

import torch
import torch.distributed as dist

REJECTED_WITH = "has no gradient on rank 2: other ranks have used it"


def average_used(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    dist.all_reduce(used)
    for parameter, users in zip(parameters, used.tolist(), strict=True):
        if users:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
