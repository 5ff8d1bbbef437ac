"""Check of ``scatter_batch``: neighbouring rows on each GPU, straight from where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import simgpu
from checks.engine import Reference, exercise, gpus, leaves, refuse
from checks.engine.plain import kind_of
from checks.labs.data_parallel_internals.models import cluster, values

CUT = "batch.chunk(len(devices))"
OFFICIAL = Reference("data_parallel_internals", "scatter_batch", {
    "rows are dealt out like cards: neighbours stay together, the first rows go to the first GPU":
        {CUT: "[batch[i :: len(devices)] for i in range(min(len(devices), len(batch)))]"},
    "rows are lost where they do not divide evenly":
        {CUT: "batch.split(max(1, len(batch) // len(devices)))[: len(devices)]"},
    "a GPU that gets no rows gets no part either": {CUT: "batch.tensor_split(len(devices))"},
    "the parts are still where the batch is: part i belongs on devices[i]": {"part.to(devices[index])": "part"},
    "the whole batch goes to every GPU: split first, then move":
        {"part.to(devices[index])": "batch.to(devices[index]).chunk(len(devices))[index]"},
    "rows move twice, by way of the first GPU: send each part straight from where it is":
        {CUT: "batch.to(devices[0]).chunk(len(devices))"},
    "no gradient comes back to the batch: do not detach it": {CUT: "batch.detach().chunk(len(devices))"},
})  # fmt: skip
CASES = [  # in which shares of at most n/p rows, rounded up, need a certain number of GPUs
    {"devices": [0, 1, 2, 3], "rows": 10, "of": "float32", "batch_on": "host"},
    {"devices": [2, 0, 1], "rows": 7, "of": "float64", "batch_on": "GPU 1"},
    {"devices": [3, 0, 2, 1], "rows": 2, "of": "int64", "batch_on": "host"},
    {"devices": [1], "rows": 3, "of": "float64", "batch_on": "GPU 0"},
    {"devices": [4, 1, 3, 0, 2], "rows": 9, "of": "float32", "batch_on": "GPU 5"},
    {"devices": [0, 1], "rows": 5, "of": "bool", "batch_on": "GPU 1", "row": ()},
]


@exercise(OFFICIAL, CASES, title="Scatter the batch", difficulty=1, minutes=10)
def scatter(case: dict[str, Any], scatter_batch: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``scatter_batch(batch, devices)``, which returns a list of parts, each on its GPU."""
    devices, source = cluster(case["devices"]), case["batch_on"]
    shape = case["rows"], *case.get("row", (2, 2))
    numbers = torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=torch.float64).view(shape)
    batch = numbers % 3 == 0 if case["of"] == "bool" else (numbers / 7).to(getattr(torch, case["of"]))
    batch = batch if source == "host" else batch.to(simgpu.device(int(source[4:])))
    batch.requires_grad_(batch.is_floating_point())
    before = gpus.held()
    with leaves(batch=gpus.raw(batch), devices=devices), gpus.seen() as seen:
        parts = scatter_batch(batch, devices)
    fine = isinstance(parts, list | tuple) and parts and all(isinstance(part, torch.Tensor) for part in parts)
    refuse(not fine, "scatter_batch returns no list of tensors", measured=kind_of(parts))
    columns = [list(part.shape) for part in parts if part.shape[1:] != batch.shape[1:]]
    refuse(columns, "split the rows (dimension 0), not the columns", measured=columns)
    places = [gpus.place(part) for part in parts]
    whole = torch.cat([part.cpu() for part in parts])
    if whole.requires_grad:
        (whole * torch.arange(whole.numel(), dtype=whole.dtype).view_as(whole)).sum().backward()
    own = sum(part.nbytes for part, place in zip(parts, places, strict=True) if place != source)
    found = {
        "the rows of all parts": whole.detach(),
        "the most rows on a GPU": max(map(len, parts)),
        "where the parts are": places,
        "bytes that move, beside the rows of each part, from where they are": sum(seen["copies"].values()) - own,
        "the gradient that comes back to the batch": None if batch.grad is None else values(batch.grad),
    }
    del parts, whole
    batch.grad = None
    refuse(gpus.held() != before, "something stays in a GPU's memory when nobody needs the parts any more")
    return found
