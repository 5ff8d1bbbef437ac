import torch.distributed as dist

REJECTED_WITH = "never waits for 7 of 7 all-reduces"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad, async_op=True)
