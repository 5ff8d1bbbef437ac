import torch.distributed as dist

REJECTED_WITH = "is the sum over the ranks: divide by the world size, 3"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
