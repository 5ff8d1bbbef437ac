import torch
import torch.distributed as dist

REJECTED_WITH = "is the sum over the ranks: divide by the world size, 3"


def average_used(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    dist.all_reduce(used)
    for parameter, users in zip(parameters, used.tolist(), strict=True):
        if users:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
