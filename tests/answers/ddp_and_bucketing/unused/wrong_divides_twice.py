import torch
import torch.distributed as dist

REJECTED_WITH = "is divided by the world size twice"


def average_used(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    dist.all_reduce(used)
    for parameter, users in zip(parameters, used.tolist(), strict=True):
        if users:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
