import torch
import torch.distributed as dist

REJECTED_WITH = "has a gradient on rank 0 though no rank has used it, or it is frozen"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
            continue
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
