"""All at once, from the last one to the first, and then all waits."""

import torch
import torch.distributed as dist


@torch.no_grad()
def broadcast_state(model):
    works = [
        dist.broadcast(tensor, src=0, async_op=True) for tensor in list(model.parameters()) + list(model.buffers())
    ]
    for work in works:
        work.wait()


def average_gradients(model):
    gradients = [parameter.grad for parameter in reversed(list(model.parameters())) if parameter.requires_grad]
    torch._foreach_div_(gradients, dist.get_world_size())
    for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
        work.wait()
