"""Exercise 1 of the lab on data parallelism: rows on their GPUs. What is not here is in the official solution."""

import math

import torch
from known_answers import right, wrong

GIVE = "return [part.to(devices[index]) for index, part in enumerate(parts)]"
PART, BEGIN = "part.to(devices[index])", "def scatter_batch"
CUT = "parts = batch.chunk(len(devices))"
right("row by row", {PART: "torch.cat([row.to(devices[index]) for row in part.split(1)])"})
right("as evenly as possible", {CUT: "parts = [p for p in batch.tensor_split(len(devices)) if len(p)]"})
right("torch's own", {GIVE: "return torch.nn.parallel.scatter(batch, devices)"})
right("the whole is packed first; a tuple", {
    CUT: "parts = batch.contiguous().split(-(-len(batch) // len(devices)))",
    GIVE: "return tuple(part.to(device, non_blocking=True) for part, device in zip(parts, devices))",
})  # fmt: skip


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


@right("the shortest share first")
def shortest_first():
    def scatter_batch(batch, devices):
        p = min(len(devices), len(batch))
        parts = batch.split([(len(batch) + index) // p for index in range(p)], dim=0)
        return [part.to(device=device) for part, device in zip(parts, devices, strict=False)]

    return (scatter_batch,)


wrong("columns", "split the rows (dimension 0), not the columns", {CUT: "parts = batch.chunk(len(devices), dim=-1)"})
wrong("empty parts", "a GPU that gets no rows gets no part either", {CUT: "parts = batch.tensor_split(len(devices))"})
wrong("a single row is squeezed", "as many dimensions as the batch", {PART: "part.squeeze(0).to(devices[index])"})
wrong("in float32", "another type", {PART: PART + ".float()"})
wrong("rounded on the way", "rounded on their way", {PART: "part.half().to(devices[index]).to(batch.dtype)"})
wrong("names made up", "on the wrong GPU", {"devices[index]": "f'simgpu:{index}'"})
wrong("sorted devices", "on the wrong GPU", {"devices[index]": "sorted(devices, key=lambda d: d.index)[index]"})
wrong("only split", "still on the host", {GIVE: "return list(parts)"})
wrong("one big tensor", "not a list of tensors", {GIVE: "return torch.cat([part.to(devices[0]) for part in parts])"})
wrong("by way of the first GPU", "rows move twice", {CUT: "parts = batch.to(devices[0]).chunk(len(devices))"})
wrong("through the host", "rows go through the host", {CUT: "parts = batch.cpu().chunk(len(devices))"})
wrong("whole batch everywhere", "more than its own rows go to a GPU", {
    PART: "batch.to(devices[index]).chunk(len(devices))[index]"
})  # fmt: skip
wrong("cuts the graph", "knows nothing of the batch", {CUT: "parts = batch.detach().chunk(len(devices))"})
wrong("freezes the batch", "whether the batch requires a gradient", {CUT: CUT + "\n    batch.requires_grad_(False)"})
wrong("empties the list of devices", "changes `devices`", {"devices[index]": "devices.pop(0)"})
wrong("clears the batch", "changes the numbers in the batch", {
    GIVE: GIVE.replace("return", "parts =") + "\n    with torch.no_grad():\n        batch.zero_()\n    return parts"
})  # fmt: skip
wrong("keeps the parts", "stays in a GPU's memory", {
    BEGIN: "known = {}\n\n\n" + BEGIN,
    GIVE: f"known[len(batch)] = known.get(len(batch)) or {GIVE[7:]}\n    return known[len(batch)]",
})  # fmt: skip
wrong("keeps them for nothing", "stays in a GPU's memory", {
    BEGIN: "known = []\n\n\n" + BEGIN, GIVE: f"known.append({GIVE[7:]})\n    return list(known[-1])"
})  # fmt: skip
wrong("copies on streams of their own, and nobody waits", "a wait is missing", {
    GIVE: "made = []\n    for part, device in zip(parts, devices):\n"
    "        with torch.simgpu.stream(torch.simgpu.Stream(device)):\n"
    "            made.append(part.to(device))\n    return made"
})  # fmt: skip
