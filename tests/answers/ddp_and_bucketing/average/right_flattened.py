"""Everything of one type in one vector: one broadcast for each type, one all-reduce."""

import torch
import torch.distributed as dist


def flat(tensors):
    """For each type, its tensors and one vector that holds them all."""
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        yield alike, torch.cat([tensor.detach().flatten() for tensor in alike])


def put_back(vector, tensors):
    with torch.no_grad():
        for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))


def broadcast_state(model):
    for tensors, vector in flat([*model.parameters(), *model.buffers()]):
        dist.broadcast(vector, 0)
        put_back(vector, tensors)


def average_gradients(model):
    for tensors, vector in flat([parameter.grad for parameter in model.parameters() if parameter.grad is not None]):
        vector /= dist.get_world_size()
        dist.all_reduce(vector)
        put_back(vector, tensors)
