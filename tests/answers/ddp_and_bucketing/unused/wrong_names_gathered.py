import torch
import torch.distributed as dist

REJECTED_WITH = "calls all_gather: only dist.all_reduce is needed here"


def average_used(model):
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [name for name, parameter in named.items() if parameter.grad is not None])
    for name, parameter in named.items():
        if any(name in names for names in everyone):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
