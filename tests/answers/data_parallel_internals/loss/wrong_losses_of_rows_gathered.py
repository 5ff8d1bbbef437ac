import torch
from torch.func import functional_call
from torch.nn import functional as F

REJECTED_WITH = "one for each GPU is enough"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def shares(model, batch, targets, devices):
    return zip(copies(model, devices), split(batch, devices), split(targets, devices), strict=False)


def data_parallel_loss(model, batch, targets, devices):
    losses = []
    for replica, rows, answers in shares(model, batch, targets, devices):
        alone = F.cross_entropy(functional_call(model, replica, (rows,)), answers, reduction="none")
        losses.append(alone.to(devices[0]))
    return torch.cat(losses).mean()
