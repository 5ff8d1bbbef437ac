import torch
from torch.func import functional_call

REJECTED_WITH = "the whole batch goes to every GPU"


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def data_parallel_forward(model, batch, devices):
    share = -(-len(batch) // len(devices))
    parts = [batch.to(device)[i * share : (i + 1) * share] for i, device in enumerate(devices)]
    parts = [part for part in parts if len(part)]
    outputs = [functional_call(model, *pair) for pair in zip(copies(model, devices), parts, strict=False)]
    return torch.cat([output.to(devices[0]) for output in outputs])
