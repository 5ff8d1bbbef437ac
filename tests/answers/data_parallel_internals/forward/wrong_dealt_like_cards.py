import torch
from torch.func import functional_call

REJECTED_WITH = "not in the order of the batch"


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def data_parallel_forward(model, batch, devices):
    parts = [batch[i :: len(devices)].to(device) for i, device in enumerate(devices[: len(batch)])]
    outputs = [functional_call(model, *pair) for pair in zip(copies(model, devices), parts, strict=False)]
    return torch.cat([output.to(devices[0]) for output in outputs])
