import torch.distributed as dist

REJECTED_WITH = "never waits for 11 of 11 broadcasts"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0, async_op=True)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
