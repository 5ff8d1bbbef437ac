"""Gradients, zeros and flags in one vector: a single all-reduce, which sends zeros that nobody needs."""

import torch
import torch.distributed as dist


def average_used(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    parts = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters]
    flags = torch.tensor([float(parameter.grad is not None) for parameter in parameters], dtype=parts[0].dtype)
    vector = torch.cat([*parts, flags])
    dist.all_reduce(vector)
    *parts, flags = vector.split([len(part) for part in (*parts, flags)])
    for parameter, part, users in zip(parameters, parts, flags, strict=True):
        parameter.grad = part.view_as(parameter) / dist.get_world_size() if users > 0 else None
