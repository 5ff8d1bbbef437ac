import torch.distributed as dist

REJECTED_WITH = "is still this rank's own: the mean does not arrive in `.grad`"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()
