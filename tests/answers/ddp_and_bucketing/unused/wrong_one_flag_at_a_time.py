import torch
import torch.distributed as dist

REJECTED_WITH = "needs more than one small all_reduce to learn what the others have used"


def average_used(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            used = torch.tensor(int(parameter.grad is not None))
            dist.all_reduce(used)
            if used:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
