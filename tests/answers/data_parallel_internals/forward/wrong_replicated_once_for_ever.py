import torch
from torch.func import functional_call

REJECTED_WITH = "the replicas still hold the old parameters"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


kept = {}


def data_parallel_forward(model, batch, devices):
    if id(model) not in kept:
        kept[id(model)] = copies(model, devices)
    parts = split(batch, devices)
    outputs = [functional_call(model, *pair) for pair in zip(kept[id(model)], parts, strict=False)]
    return torch.cat([output.to(devices[0]) for output in outputs])
