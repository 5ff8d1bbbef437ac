import torch
import torch.distributed as dist

REJECTED_WITH = "the answer uses DistributedDataParallel: write it yourself"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    torch.nn.parallel.DistributedDataParallel(model)
