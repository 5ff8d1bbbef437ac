"""Exercise 1 of the lab on data parallelism: the rows of a batch, on their GPUs."""

import itertools
import math

import torch
from known_answers import right, wrong


def scatter_batch(batch, devices):
    parts = batch.chunk(len(devices))
    return [part.to(devices[index]) for index, part in enumerate(parts)]


GIVE = "return [part.to(devices[index]) for index, part in enumerate(parts)]"
CUT = "parts = batch.chunk(len(devices))"


# --- right, and written differently


@right("by counting, into place")
def by_counting():
    def scatter_batch(batch, devices):
        most = math.ceil(len(batch) / len(devices))
        parts = []
        for index, device in enumerate(devices):
            rows = batch[index * most : (index + 1) * most]
            if rows.shape[0]:
                parts.append(torch.empty(rows.shape, dtype=rows.dtype, device=device).copy_(rows))
        return parts

    return (scatter_batch,)


@right("as evenly as possible")
def evenly():
    def scatter_batch(batch, devices):
        shares = batch.tensor_split(len(devices))
        return [share.to(device) for share, device in zip(shares, devices, strict=False) if len(share)]

    return (scatter_batch,)


@right("torch's own")
def with_torch():
    from torch.nn.parallel import scatter

    def scatter_batch(batch, devices):
        return scatter(batch, devices)

    return (scatter_batch,)


@right("sizes first, then split; keyword arguments")
def sizes_first():
    def scatter_batch(batch, devices):
        n, p = batch.size(0), len(devices)
        sizes = [n // p + (1 if index < n % p else 0) for index in range(p)]
        places = [device for device, size in zip(devices, sizes, strict=True) if size]
        parts = torch.split(batch, [size for size in sizes if size], dim=0)
        return list(map(lambda part, place: part.to(device=place, non_blocking=True), parts, places))

    return (scatter_batch,)


@right("narrow, the shortest share first")
def shortest_first():
    def scatter_batch(batch, devices):
        n, p = len(batch), min(len(devices), len(batch))
        ends = list(itertools.accumulate((n + index) // p for index in range(p)))
        return [
            batch.narrow(0, begin, end - begin).to(device)
            for begin, end, device in zip([0, *ends], ends, devices, strict=False)
        ]

    return (scatter_batch,)


@right("the whole is packed first, on its own GPU")
def packed():
    def scatter_batch(batch, devices):
        batch = batch.contiguous()
        most = -(-batch.shape[0] // len(devices))
        return tuple(part.to(device) for part, device in zip(batch.split(most), devices, strict=False))

    return (scatter_batch,)


# --- wrong: which rows

wrong("columns", "split the rows (dimension 0), not the columns", {CUT: "parts = batch.chunk(len(devices), dim=-1)"})
wrong("dealt like cards", "the rows are out of order", {
    CUT: "parts = [batch[i :: len(devices)] for i in range(min(len(devices), len(batch)))]"
})  # fmt: skip
wrong("empty parts", "a GPU that gets no rows gets no part either", {CUT: "parts = batch.tensor_split(len(devices))"})
wrong("last rows dropped", "rows are lost", {
    CUT: "parts = batch.split(max(1, len(batch) // len(devices)))[: len(devices)]"
})  # fmt: skip
wrong("rest on the last GPU", "the rows are not shared out evenly", {
    CUT: "n, p = len(batch), len(devices)\n    parts = [part for part in batch.tensor_split([i * (n // p) for i in range(1, p)]) if len(part)]"
})  # fmt: skip
wrong("size taken for number", "the rows are not shared out evenly", {
    CUT: "parts = batch.split(len(devices))", "devices[index]": "devices[index % len(devices)]"
})  # fmt: skip
wrong("same rows for all", "rows are on more than one GPU", {CUT: "parts = [batch] * len(devices)"})
wrong(
    "never more than four parts",
    "the rows are not shared out evenly",
    {"chunk(len(devices))": "chunk(min(4, len(devices)))"},
)
wrong("first rows last", "the rows are out of order", {"enumerate(parts)": "enumerate(parts[::-1])"})
wrong("in float32", "a part has another type", {GIVE: GIVE.replace("[index])", "[index]).float()")})
wrong("rounded on the way", "the parts hold other numbers", {
    GIVE: GIVE.replace("part.to(devices[index])", "part.to(torch.bfloat16).to(devices[index]).to(batch.dtype)")
})  # fmt: skip


# --- wrong: where, and how it gets there

wrong("names made up", "a part is on the wrong GPU", {"devices[index]": "f'simgpu:{index}'"})
wrong(
    "sorted devices", "a part is on the wrong GPU", {"devices[index]": "sorted(devices, key=lambda d: d.index)[index]"}
)
wrong("only split", "a part is still on the host", {GIVE: "return list(parts)"})
wrong("one big tensor", "scatter_batch returns a list of tensors", {
    GIVE: "return torch.cat([part.to(devices[0]) for part in parts])"
})  # fmt: skip
wrong(
    "a generator",
    "scatter_batch returns a list of tensors",
    {GIVE: GIVE.replace("[part", "(part").replace("parts)]", "parts))")},
)
wrong("by way of the first GPU", "rows move twice", {CUT: "parts = batch.to(devices[0]).chunk(len(devices))"})
wrong("through the host", "rows go through the host", {CUT: "parts = batch.cpu().chunk(len(devices))"})
wrong("whole batch everywhere", "more than its own rows go to a GPU", {
    GIVE: "most = len(parts[0])\n    return [batch.to(devices[i])[i * most : (i + 1) * most] for i in range(len(parts))]"
})  # fmt: skip
wrong("from GPU to GPU in a row", "rows move twice", {
    GIVE: "found = []\n    for index in range(len(parts)):\n        batch = batch.to(devices[index])\n"
    "        found.append(batch.chunk(len(devices))[index])\n    return found"
})  # fmt: skip


# --- wrong: what else is changed

wrong("cuts the graph", "knows nothing of the batch", {CUT: "parts = batch.detach().chunk(len(devices))"})
wrong("no_grad", "knows nothing of the batch", {"def scatter_batch": "@torch.no_grad()\ndef scatter_batch"})
wrong("freezes the batch", "`batch` has another `requires_grad`", {CUT: CUT + "\n    batch.requires_grad_(False)"})
wrong("empties the list of devices", "devices", {
    "devices[index]": "devices.pop(0)", "chunk(len(devices))": "chunk(len(devices))"
})  # fmt: skip
wrong("clears the batch", "The batch belongs to whoever called you", {
    GIVE: "parts = [part.to(devices[index]).clone() for index, part in enumerate(parts)]\n"
    "    with torch.no_grad():\n        batch.zero_()\n    return parts"
})  # fmt: skip
wrong("keeps the parts", "the parts hold other numbers", {
    "def scatter_batch": "known = {}\n\n\ndef scatter_batch",
    GIVE: "key = len(batch), tuple(sorted(device.index for device in devices))\n    if key not in known:\n"
    "        known[key] = [part.to(devices[index]) for index, part in enumerate(parts)]\n    return known[key]",
})  # fmt: skip
wrong("keeps them for nothing", "stays in a GPU's memory", {
    "def scatter_batch": "known = []\n\n\ndef scatter_batch",
    GIVE: "known.append([part.to(devices[index]) for index, part in enumerate(parts)])\n    return list(known[-1])",
})  # fmt: skip
wrong(
    "leaves another GPU current",
    "leaves the current GPU other",
    {GIVE: "torch.simgpu.set_device(devices[-1])\n    " + GIVE},
)


right("row by row", {"part.to(devices[index])": "torch.cat([row.to(devices[index]) for row in part.split(1)])"})
wrong("a single row is squeezed", "has as many dimensions as the batch", {
    "part.to(devices[index])": "part.squeeze(0).to(devices[index])"
})  # fmt: skip
wrong("views of the batch are kept", "after the call the batch, or a view of it, is kept", {
    GIVE: "scatter_batch.parts = parts\n    " + GIVE
})  # fmt: skip
wrong("copies on streams of their own, and nobody waits", "a wait is missing between them", {
    "    return [part.to(devices[index]) for index, part in enumerate(parts)]": "    made = []\n"
    "    for part, device in zip(parts, devices):\n"
    "        with torch.simgpu.stream(torch.simgpu.Stream(device)):\n"
    "            made.append(part.to(device))\n    return made"
})  # fmt: skip
