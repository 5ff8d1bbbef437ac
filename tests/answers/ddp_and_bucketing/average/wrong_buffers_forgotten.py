import torch.distributed as dist

REJECTED_WITH = "the buffer `shift` is still its own: model.parameters() holds no buffers"


def broadcast_state(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
