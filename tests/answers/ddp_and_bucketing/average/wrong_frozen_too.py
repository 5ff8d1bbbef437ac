import torch
import torch.distributed as dist

REJECTED_WITH = "frozen parameters are sent, too: `frozen.weight` never gets a gradient"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    for parameter in model.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
