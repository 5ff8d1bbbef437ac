import torch
from torch.func import functional_call

REJECTED_WITH = "rows are lost"


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def data_parallel_forward(model, batch, devices):
    share = max(1, len(batch) // len(devices))
    parts = [batch[i * share : (i + 1) * share].to(d) for i, d in enumerate(devices) if i * share < len(batch)]
    outputs = [functional_call(model, *pair) for pair in zip(copies(model, devices), parts, strict=False)]
    return torch.cat([output.to(devices[0]) for output in outputs])
