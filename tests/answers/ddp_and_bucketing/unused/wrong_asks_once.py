"""What was used in the first step is taken to be used for ever."""

import torch
import torch.distributed as dist

REJECTED_WITH = "has no gradient on rank 0: other ranks have used it"


known = []


def average_used(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not known:
        used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
        dist.all_reduce(used)
        known.append(used.tolist())
    for parameter, users in zip(parameters, known[0], strict=True):
        if users:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
