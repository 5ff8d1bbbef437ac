import torch
from torch.func import functional_call

REJECTED_WITH = "outputs go through the host"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def data_parallel_forward(model, batch, devices):
    parts = split(batch, devices)
    outputs = [functional_call(model, *pair) for pair in zip(copies(model, devices), parts, strict=False)]
    return torch.cat([output.cpu() for output in outputs]).to(devices[0])
