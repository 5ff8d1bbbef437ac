import torch
import torch.distributed as dist

REJECTED_WITH = "is still this rank's own: the mean does not arrive in `.grad`"


def average_used(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    dist.all_reduce(used, op=dist.ReduceOp.MIN)
    for parameter, by_all in zip(parameters, used.tolist(), strict=True):
        if by_all:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
