from concurrent.futures import ThreadPoolExecutor

import torch
from torch.func import functional_call

REJECTED_WITH = "threads share one module"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def data_parallel_forward(model, batch, devices):
    parts = split(batch, devices)
    replicas = copies(model, devices[: len(parts)])
    with ThreadPoolExecutor(len(parts)) as threads:
        work = [threads.submit(functional_call, model, *pair) for pair in zip(replicas, parts, strict=False)]
        outputs = [one.result() for one in work]
    return torch.cat([output.to(devices[0]) for output in outputs])
