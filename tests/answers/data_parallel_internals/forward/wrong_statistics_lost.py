import torch
from torch.func import functional_call

REJECTED_WITH = "give the first replica the model's own buffers"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def data_parallel_forward(model, batch, devices):
    parts = split(batch, devices)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    replicas = [
        {name: tensor.to(device) for name, tensor in (*model.named_parameters(), *buffers.items())}
        for device in devices
    ]
    outputs = [functional_call(model, *pair) for pair in zip(replicas, parts, strict=False)]
    return torch.cat([output.to(devices[0]) for output in outputs])
