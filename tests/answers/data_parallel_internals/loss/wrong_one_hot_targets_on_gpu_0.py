import torch
from torch.func import functional_call
from torch.nn import functional as F

REJECTED_WITH = "GPU 0 holds too much at its peak"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def shares(model, batch, targets, devices):
    return zip(copies(model, devices), split(batch, devices), split(targets, devices), strict=False)


def data_parallel_loss(model, batch, targets, devices):
    classes = list(model.parameters())[-1].numel()
    wanted = torch.zeros(len(batch), classes, device=devices[0]).scatter_(1, targets[:, None], 1.0)
    losses = []
    for replica, rows, answers in shares(model, batch, wanted, devices):
        loss = F.cross_entropy(functional_call(model, replica, (rows,)), answers)
        losses.append(loss * len(rows) / len(batch))
    return sum(loss.to(devices[0]) for loss in losses)
