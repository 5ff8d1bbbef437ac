import torch


def load(store, rank, world_size):
    """Takes the pieces of each tensor in the order of their rows, and puts them together."""
    pieces = {}
    for file in store.files():
        for name, entry in store.index(file).items():
            pieces.setdefault(name, []).append((*entry["rows"], file, entry))
    state = {}
    for name, parts in pieces.items():
        entry = parts[0][3]
        kind = getattr(torch, entry["dtype"])
        mine = torch.arange(entry["shape"][0]).tensor_split(world_size)[rank].tolist()
        found = torch.empty([0, *entry["shape"][1:]], dtype=kind)
        width = found.new_empty([1, *entry["shape"][1:]]).nbytes
        for begin, end, file, entry in sorted(parts, key=lambda part: part[:2]):
            rows = [row for row in mine if begin <= row < end]
            if not rows:
                continue
            data = store.read(file, entry["offset"] + (rows[0] - begin) * width, len(rows) * width)
            found = torch.cat([found, torch.frombuffer(data, dtype=kind).view(len(rows), *entry["shape"][1:])])
        state[name] = found
    return state
