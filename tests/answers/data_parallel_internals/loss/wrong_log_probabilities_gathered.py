import torch
from torch.func import functional_call
from torch.nn import functional as F

REJECTED_WITH = "compute the loss where the logits are"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def data_parallel_loss(model, batch, targets, devices):
    pairs = zip(copies(model, devices), split(batch, devices), strict=False)
    scores = [F.log_softmax(functional_call(model, *pair), dim=1).to(devices[0]) for pair in pairs]
    return F.nll_loss(torch.cat(scores), targets)
