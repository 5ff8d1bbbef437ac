import torch
import torch.distributed as dist

REJECTED_WITH = "calls broadcast: only dist.all_reduce is needed here"


def average_used(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    dist.broadcast(used, 0)
    for parameter, by_rank_0 in zip(parameters, used.tolist(), strict=True):
        if by_rank_0:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
