import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.func import functional_call


def copies(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def data_parallel_forward(model, batch, devices):
    parts = batch.tensor_split(min(len(devices), len(batch)))
    parts = [part.to(device) for part, device in zip(parts, devices, strict=False)]
    replicas = copies(model, devices[: len(parts)])
    shells = [copy.deepcopy(model) for _ in parts]
    with ThreadPoolExecutor(len(parts)) as threads:
        work = [threads.submit(functional_call, *three) for three in zip(shells, replicas, parts, strict=False)]
        outputs = [one.result() for one in work]
    return torch.cat([output.to(devices[0]) for output in outputs])
