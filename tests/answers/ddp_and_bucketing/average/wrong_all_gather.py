import torch
import torch.distributed as dist

REJECTED_WITH = "calls all_gather: only dist.all_reduce is needed here"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            everyone = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, parameter.grad)
            parameter.grad = torch.stack(everyone).mean(0)
