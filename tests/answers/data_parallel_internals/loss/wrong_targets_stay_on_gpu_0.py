from torch.func import functional_call
from torch.nn import functional as F

REJECTED_WITH = "Expected all tensors to be on the same device"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def data_parallel_loss(model, batch, targets, devices):
    losses = []
    parts = zip(copies(model, devices), split(batch, devices), targets.chunk(len(devices)), strict=False)
    for replica, rows, answers in parts:
        losses.append(F.cross_entropy(functional_call(model, replica, (rows,)), answers) * len(rows) / len(batch))
    return sum(loss.to(devices[0]) for loss in losses)
