import math

import torch

REJECTED_WITH = "too many small reads"


def load(store, rank, world_size):
    indices = {file: store.index(file) for file in store.files()}
    loaded = {}
    for name, entry in next(iter(indices.values())).items():
        shape, dtype = entry["shape"], getattr(torch, entry["dtype"])
        row = math.prod(shape[1:]) * dtype.itemsize
        each, more = divmod(shape[0], world_size)
        first = rank * each + min(rank, more)
        last = first + each + (rank < more)
        whole = torch.empty(last - first, *shape[1:], dtype=dtype)
        for file, index in indices.items():
            a, b = index[name]["rows"]
            start, stop = max(a, first), min(b, last)
            for number in range(start, stop):
                content = store.read(file, index[name]["offset"] + (number - a) * row, row)
                whole[number - first] = torch.frombuffer(content, dtype=dtype).reshape(shape[1:])
        loaded[name] = whole
    return loaded
