import math

import torch

REJECTED_WITH = "the wrong rows"


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
            if start < stop:
                content = store.read(file, (start - a) * row, (stop - start) * row)
                part = torch.frombuffer(content, dtype=dtype)
                whole[start - first : stop - first] = part.reshape(stop - start, *shape[1:])
        loaded[name] = whole
    return loaded
