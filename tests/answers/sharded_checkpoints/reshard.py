"""Exercise 1 of the lab on sharded checkpoints: what N ranks have saved is loaded by M."""

# ruff: noqa: F401 (modules that changed answers use)
import itertools
import math

import numpy
import torch
from known_answers import right, wrong

from checks.sharded_checkpoints.sharded_store import share


def load(store, rank, world_size):
    indices = {file: store.index(file) for file in store.files()}
    loaded = {}
    for name, entry in next(iter(indices.values())).items():
        shape, dtype = entry["shape"], getattr(torch, entry["dtype"])
        row = math.prod(shape[1:]) * dtype.itemsize
        first, last = share(shape[0], rank, world_size)
        mine = torch.empty(last - first, *shape[1:], dtype=dtype)
        for file, index in indices.items():
            a, b = index[name]["rows"]
            start, stop = max(a, first), min(b, last)
            if start < stop:
                content = store.read(file, index[name]["offset"] + (start - a) * row, (stop - start) * row)
                piece = torch.frombuffer(content, dtype=dtype)
                mine[start - first : stop - first] = piece.reshape(stop - start, *shape[1:])
        loaded[name] = mine
    return loaded


EQUAL = {
    "26: arguments of `max(a, first)` swapped": "max has no order",
    "26: arguments of `min(b, last)` swapped": "min has no order",
}
READ = 'store.read(file, index[name]["offset"] + (start - a) * row, (stop - start) * row)'
PIECE = "                piece = torch.frombuffer(content, dtype=dtype)\n"
PLACE = "                mine[start - first : stop - first] = piece.reshape(stop - start, *shape[1:])\n"
SHARE = "        first, last = share(shape[0], rank, world_size)\n"
KEEP = "        loaded[name] = mine\n"


# --- right, and written differently


@right("the bytes of this rank first, and as numbers in the end")
def bytes_first():
    def load(store, rank, world_size):
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

    return (load,)


@right("pieces in the order of their rows, put together")
def piece_by_piece():
    def load(store, rank, world_size):
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

    return (load,)


@right("file by file, named arguments, rows of bytes")
def file_by_file():
    def load(store, rank, world_size):
        state = {}
        for file in sorted(store.files()):
            for name, facts in store.index(file=file).items():
                rows, dtype = facts["shape"][0], getattr(torch, facts["dtype"])
                width = math.prod(facts["shape"][1:]) * dtype.itemsize
                low, high = (one * (rows // world_size) + min(one, rows % world_size) for one in (rank, rank + 1))
                if name not in state:
                    state[name] = torch.zeros(high - low, *facts["shape"][1:], dtype=dtype)
                a, b = facts["rows"]
                begin, size = max(a, low), min(b, high) - max(a, low)
                if size > 0:
                    found = store.read(file=file, offset=facts["offset"] + (begin - a) * width, size=size * width)
                    numbers = torch.tensor(list(found), dtype=torch.uint8).view(dtype).view(size, *facts["shape"][1:])
                    state[name].narrow(0, begin - low, size).copy_(numbers)
        return state

    return (load,)


@right("a generator of pieces, and a concatenation")
def generator():
    def load(store, rank, world_size):
        files = [(file, store.index(file)) for file in store.files()]

        def pieces(name, low, high, row):
            for file, index in sorted(files, key=lambda pair: pair[1][name]["rows"]):
                a, b = index[name]["rows"]
                if max(a, low) < min(b, high):
                    at = index[name]["offset"] + row * max(low - a, 0)
                    yield store.read(file, at, row * (min(b, high) - max(a, low)))

        def tensor(name, entry):
            sizes = torch.empty(entry["shape"], device="meta").tensor_split(world_size)
            low = sum(len(one) for one in sizes[:rank])
            dtype = getattr(torch, entry["dtype"])
            row = dtype.itemsize * math.prod(entry["shape"][1:])
            joined = bytearray().join(pieces(name, low, low + len(sizes[rank]), row))
            empty = torch.empty(sizes[rank].shape, dtype=dtype)
            return torch.frombuffer(joined, dtype=dtype).view_as(empty) if joined else empty

        return {name: tensor(name, entry) for name, entry in files[-1][1].items()}

    return (load,)


# --- wrong: the rows

wrong("an offset is forgotten", "the wrong rows", {'index[name]["offset"] + ': ""})
wrong("one row too early", "has the wrong rows", {"(start - a) * row": "max(0, start - a - 1) * row"})
wrong("the order of files", "the right rows in the wrong order", {
    "mine = torch.empty(last - first,": "pieces = [torch.empty(0,", "*shape[1:], dtype=dtype)": "*shape[1:], dtype=dtype)]",
    PLACE: "                pieces.append(piece.reshape(stop - start, *shape[1:]))\n", KEEP: "        loaded[name] = torch.cat(pieces)\n",
})  # fmt: skip
wrong("sorted by the names of files", "sort by rows, not by the names of files", {
    "in indices.items():\n            a, b = index[name][\"rows\"]": "in sorted(indices.items()):\n            a, b = index[name][\"rows\"]",
    PLACE: "                at = mine.filled if hasattr(mine, 'filled') else 0\n"
    "                mine[at : at + stop - start] = piece.reshape(stop - start, *shape[1:])\n                mine.filled = at + stop - start\n",
})  # fmt: skip
wrong("the rest on the last rank", "the wrong number of rows", {
    SHARE: "        each, more = divmod(shape[0], world_size)\n        first = rank * each\n"
    "        last = first + each + (more if rank == world_size - 1 else 0)\n"
})  # fmt: skip
wrong("shares are rounded up", "the wrong number of rows", {
    SHARE: "        each = math.ceil(shape[0] / world_size)\n        first = min(rank * each, shape[0])\n"
    "        last = min(first + each, shape[0])\n"
})  # fmt: skip
wrong("saved evenly", "reads beyond the end of a file", {
    'a, b = index[name]["rows"]': "saver, savers = int(file.removeprefix('shard-')), len(indices)\n"
    "            a, b = saver * shape[0] // savers, (saver + 1) * shape[0] // savers"
})  # fmt: skip
wrong("names are counted", "raised", {"store.files()}": 'map("shard-{}".format, range(len(store.files())))}'})
wrong(
    "an empty one is forgotten",
    "a rank without rows gets a tensor with none",
    {KEEP: "        if len(mine):\n    " + KEEP},
)
wrong("all in float32", "has another data type", {KEEP: "        loaded[name] = mine.float()\n"})
wrong("flat", "has another shape", {KEEP: "        loaded[name] = mine.flatten()\n"})
wrong("arrays", "is not a tensor", {KEEP: "        loaded[name] = mine.float().numpy()\n"})
wrong("a list", "load returns a dictionary", {"    return loaded": "    return list(loaded.items())"})
wrong("a note among the tensors", "there is no tensor", {"    return loaded": "    return loaded | {'rank': rank}"})
wrong("the lab's tensors only", "missing", {KEEP: "        if '.' not in name:\n    " + KEEP})
wrong(
    "four bytes a number",
    "wrong rows",
    {
        "dtype.itemsize": "4",
        "piece = torch.frombuffer(content, dtype=dtype)": "piece = torch.zeros((stop - start) * math.prod(shape[1:]), dtype=dtype)",
    },
)
wrong("the index is kept from call to call", "raised", {
    "def load": "kept = {}\n\n\ndef load", "    loaded = {}\n": "    indices = kept.setdefault('indices', indices)\n    loaded = {}\n"
})  # fmt: skip


# --- wrong: what is read

wrong("borders touch", "files are read that hold no row of this rank", {
    "if start < stop": "if start <= stop", PIECE: "                if not content:\n                    continue\n" + PIECE
})  # fmt: skip
wrong("everything is read", "files are read that hold no row of this rank", {
    "if start < stop:": "if a < b:", READ: 'store.read(file, index[name]["offset"], (b - a) * row)',
    PIECE: "                piece = torch.frombuffer(content, dtype=dtype).reshape(b - a, *shape[1:])\n",
    PLACE: "                if start < stop:\n                    mine[start - first : stop - first] = piece[start - a : stop - a]\n",
})  # fmt: skip
wrong("whole shards", "more is read than this rank needs", {
    READ: 'store.read(file, index[name]["offset"], (b - a) * row)',
    PIECE: "                piece = torch.frombuffer(content, dtype=dtype).reshape(b - a, *shape[1:])\n",
    PLACE: "                mine[start - first : stop - first] = piece[start - a : stop - a]\n",
})  # fmt: skip
wrong("one read a row", "too many small reads", {
    "            if start < stop:\n": "            for number in range(start, stop):\n",
    READ: 'store.read(file, index[name]["offset"] + (number - a) * row, row)',
    PLACE: "                mine[number - first] = piece.reshape(shape[1:])\n",
})  # fmt: skip
wrong("an index for each tensor", "an index is read more than once", {
    "in indices.items()": "in [(file, store.index(file)) for file in indices]"
})  # fmt: skip
wrong(
    "looks behind the store",
    "looks into the check",
    {"    loaded = {}\n": "    store.read.__closure__[0].cell_contents.gi_frame\n    loaded = {}\n"},
)
wrong(
    "the store is marked",
    "`store` has attributes",
    {"    loaded = {}\n": "    store.indices = indices\n    loaded = {}\n"},
)
wrong(
    "the default type",
    "leaves torch's defaults other",
    {"    loaded = {}\n": "    torch.set_default_dtype(torch.float64)\n    loaded = {}\n"},
)
wrong(
    "a file",
    "writes a file",
    {"    loaded = {}\n": "    torch.save(indices, open('indices', 'wb'))\n    loaded = {}\n"},
)

wrong("by way of doubles, which hold no large integers", "has the wrong rows", {
    PIECE: PIECE + "                piece = piece if piece.is_complex() else piece.double().to(dtype)\n"
})  # fmt: skip
wrong("what is no number becomes zero", "has the wrong rows", {
    KEEP: "        if mine.is_floating_point():\n            mine = torch.nan_to_num(mine)\n" + KEEP
})  # fmt: skip
wrong("a last dimension of one is dropped", "has another shape", {
    KEEP: "        loaded[name] = mine.squeeze(-1) if mine.ndim > 1 else mine\n"
})  # fmt: skip


@wrong("offsets are added up", "has the wrong rows")
def added_up():
    class Packed:
        """A store without gaps."""

        def __init__(self, store):
            self.files, self.read, self.whole = store.files, store.read, store

        def index(self, file):
            index = self.whole.index(file)
            at = min(entry["offset"] for entry in index.values())
            for entry in sorted(index.values(), key=lambda entry: entry["offset"]):
                entry["offset"], (first, last) = at, entry["rows"]
                at += (last - first) * math.prod(entry["shape"][1:]) * getattr(torch, entry["dtype"]).itemsize
            return index

    def load_packed(store, rank, world_size):
        return load(Packed(store), rank, world_size)

    return (load_packed,)
