"""Zeros for everything, as the real DDP sends them; the flags, one byte each, travel at the same time."""

import torch
import torch.distributed as dist


def average_used(model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    idle = [p for p in parameters if p.grad is None]
    for parameter in idle:
        parameter.grad = torch.zeros_like(parameter)
    nobody = torch.tensor([parameter in set(idle) for parameter in parameters], dtype=torch.uint8)
    works = [dist.all_reduce(nobody, op=dist.ReduceOp.MIN, async_op=True)]
    works += [dist.all_reduce(parameter.grad, async_op=True) for parameter in parameters]
    for work in works:
        work.wait()
    for parameter, unused in zip(parameters, nobody, strict=True):
        parameter.grad = None if unused else parameter.grad / dist.get_world_size()
