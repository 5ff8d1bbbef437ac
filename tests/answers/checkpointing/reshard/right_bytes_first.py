import math

import torch


def load(store, rank, world_size):
    """Collects the bytes of this rank, and looks at them as numbers in the end."""
    indices = {file: store.index(file) for file in store.files()}
    state = {}
    for name, entry in indices[store.files()[0]].items():
        rows, *rest = entry["shape"]
        dtype = getattr(torch, entry["dtype"])
        width = torch.empty(0, dtype=dtype).element_size() * math.prod(rest)
        sizes = [rows // world_size + (one < rows % world_size) for one in range(world_size)]
        begin = sum(sizes[:rank])
        content = bytearray(sizes[rank] * width)
        for file in sorted(indices, reverse=True):
            low, high = indices[file][name]["rows"]
            wanted = range(max(low, begin), min(high, begin + sizes[rank]))
            if len(wanted):
                place = slice((wanted.start - begin) * width, (wanted.stop - begin) * width)
                where = indices[file][name]["offset"] + (wanted.start - low) * width
                content[place] = store.read(file, where, len(wanted) * width)
        flat = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
        state[name] = flat.reshape(sizes[rank], *rest)
    return state
