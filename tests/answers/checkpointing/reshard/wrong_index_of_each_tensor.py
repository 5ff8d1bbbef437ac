import math

import torch

REJECTED_WITH = "an index is read more than once"


def load(store, rank, world_size):
    loaded = {}
    for name, entry in store.index(store.files()[0]).items():
        shape, dtype = entry["shape"], getattr(torch, entry["dtype"])
        row = math.prod(shape[1:]) * dtype.itemsize
        each, more = divmod(shape[0], world_size)
        first = rank * each + min(rank, more)
        last = first + each + (rank < more)
        whole = torch.empty(last - first, *shape[1:], dtype=dtype)
        for file in store.files():
            index = store.index(file)
            a, b = index[name]["rows"]
            start, stop = max(a, first), min(b, last)
            if start < stop:
                content = store.read(file, index[name]["offset"] + (start - a) * row, (stop - start) * row)
                part = torch.frombuffer(content, dtype=dtype)
                whole[start - first : stop - first] = part.reshape(stop - start, *shape[1:])
        loaded[name] = whole
    return loaded
