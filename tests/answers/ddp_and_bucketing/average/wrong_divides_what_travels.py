import torch.distributed as dist

REJECTED_WITH = "changes a gradient that is still travelling"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    works = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            works.append(dist.all_reduce(parameter.grad, async_op=True))
            parameter.grad /= dist.get_world_size()
    for work in works:
        work.wait()
