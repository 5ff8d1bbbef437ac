import torch.distributed as dist

REJECTED_WITH = "raised TypeError"


def average_used(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
