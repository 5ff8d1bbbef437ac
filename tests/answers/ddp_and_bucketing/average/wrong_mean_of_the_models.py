import torch.distributed as dist

REJECTED_WITH = "calls all_reduce: only dist.broadcast is needed here"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.all_reduce(tensor.detach())
        tensor.data.copy_(tensor.data / dist.get_world_size())


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
