"""Exercise 1 of the lab on data parallelism: rows on their GPUs. What is not here is in the official solution."""

import math

import torch
from known_answers import right, wrong

GIVE = "return [part.to(devices[index]) for index, part in enumerate(parts)]"
PART, BEGIN = "part.to(devices[index])", "def scatter_batch"
CUT = "parts = batch.chunk(len(devices))"
right("row by row", {PART: "torch.cat([row.to(devices[index]) for row in part.split(1)])"})
right("torch's own", {GIVE: "return torch.nn.parallel.scatter(batch, devices)"})


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


wrong("columns", "split the rows (dimension 0), not the columns", {CUT: "parts = batch.chunk(len(devices), dim=-1)"})
wrong("empty parts", "a GPU that gets no rows gets no part either", {CUT: "parts = batch.tensor_split(len(devices))"})
wrong("only split", "part i belongs on devices[i]", {GIVE: "return list(parts)"})
wrong("by way of the first GPU", "rows move twice", {CUT: "parts = batch.to(devices[0]).chunk(len(devices))"})
wrong("cuts the graph", "do not detach it", {CUT: "parts = batch.detach().chunk(len(devices))"})
