import math

import torch


def scatter_batch(batch, devices):
    most = math.ceil(len(batch) / len(devices))
    parts = []
    for index, device in enumerate(devices):
        rows = batch[index * most : (index + 1) * most]
        if rows.shape[0]:
            parts.append(torch.empty(rows.shape, dtype=rows.dtype, device=device).copy_(rows))
    return parts
