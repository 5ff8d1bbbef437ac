"""What nobody has used gets a gradient of zeros."""

import torch
import torch.distributed as dist

REJECTED_WITH = "has a gradient on rank 0 though no rank has used it"


def average_used(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
