"""The order depends on numbers that differ from rank to rank."""

import torch.distributed as dist

REJECTED_WITH = "the ranks do not call the same collectives"


def broadcast_state(model):
    tensors = [*model.parameters(), *model.buffers()]
    for tensor in sorted(tensors, key=lambda tensor: float(tensor.detach().double().mean())):
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
