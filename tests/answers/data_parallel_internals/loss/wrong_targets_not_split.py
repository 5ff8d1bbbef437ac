from torch.func import functional_call
from torch.nn import functional as F

REJECTED_WITH = "does each row meet its own target"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def data_parallel_loss(model, batch, targets, devices):
    total = 0
    for replica, rows in zip(copies(model, devices), split(batch, devices), strict=False):
        answers = targets[: len(rows)].to(rows.device)
        loss = F.cross_entropy(functional_call(model, replica, (rows,)), answers) * len(rows) / len(batch)
        total = total + loss.to(devices[0])
    return total
