from torch.func import functional_call
from torch.nn import functional as F

REJECTED_WITH = "the sum of the GPUs' means: divide"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def shares(model, batch, targets, devices):
    return zip(copies(model, devices), split(batch, devices), split(targets, devices), strict=False)


def data_parallel_loss(model, batch, targets, devices):
    losses = [
        F.cross_entropy(functional_call(model, replica, (rows,)), answers).to(devices[0])
        for replica, rows, answers in shares(model, batch, targets, devices)
    ]
    return sum(losses)
