import torch.distributed as dist

REJECTED_WITH = "the parameter `frozen.weight` is still its own"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.requires_grad or tensor in set(model.buffers()):
            dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
