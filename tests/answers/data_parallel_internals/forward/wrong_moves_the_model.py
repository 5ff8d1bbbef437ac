import torch

REJECTED_WITH = "the model itself has moved"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def data_parallel_forward(model, batch, devices):
    outputs = [model.to(part.device)(part) for part in split(batch, devices)]
    return torch.cat([output.to(devices[0]) for output in outputs])
