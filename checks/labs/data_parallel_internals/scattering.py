"""Check of ``scatter_batch``: neighbouring rows on each GPU, straight from where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import simgpu
from checks.engine import Reference, gpus, leaves, refuse
from checks.labs.data_parallel_internals.simulated import cluster, links, refuse_left, unraced, values

CUT = "batch.chunk(len(devices))"
OFFICIAL = Reference("data_parallel_internals", "scatter_batch", {
    "rows are dealt out like cards: neighbours stay together, the first rows go to the first GPU":
        {CUT: "[batch[i :: len(devices)] for i in range(min(len(devices), len(batch)))]"},
    "the first part has the last rows: they stay in order": {"enumerate(parts)": "enumerate(parts[::-1])"},
    "rows are lost where they do not divide evenly":
        {CUT: "batch.split(max(1, len(batch) // len(devices)))[: len(devices)]"},
    "every GPU gets all rows: give each its share": {CUT: "[batch] * len(devices)"},
    "all rows that are left over go to the last GPU: no share may be more than n/p, rounded up":
        {CUT: "[part for part in batch.tensor_split([i * (len(batch) // len(devices)) "
              "for i in range(1, len(devices))]) if len(part)]"},
    "the batch is split into parts of as many rows as there are GPUs: p is the number of parts":
        {CUT: "batch.split(len(devices))", "devices[index]": "devices[index % len(devices)]"},
    "there are never more than four parts": {"chunk(len(devices))": "chunk(min(4, len(devices)))"},
})  # fmt: skip
CASES = [
    {"devices": [0, 1, 2, 3], "rows": 10, "of": "float32", "batch_on": "host"},
    {"devices": [2, 0, 1], "rows": 7, "of": "float64", "batch_on": "GPU 1"},
    {"devices": [3, 0, 2, 1], "rows": 2, "of": "int64", "batch_on": "host"},
    {"devices": [1], "rows": 3, "of": "float64", "batch_on": "GPU 0"},
    {"devices": [4, 1, 3, 0, 2], "rows": 9, "of": "float32", "batch_on": "GPU 5"},
    {"devices": [0, 1], "rows": 5, "of": "bool", "batch_on": "GPU 1", "row": ()},
]


def play(case: dict[str, Any], scatter_batch: Callable[..., Any]) -> dict[str, Any]:
    devices = cluster(case["devices"])
    source, shape = case["batch_on"], (case["rows"], *case.get("row", (2, 2)))
    numbers = torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=torch.float64).view(shape) / 7
    batch = (numbers * 7 % 3 == 0) if case["of"] == "bool" else numbers.to(getattr(torch, case["of"]))
    batch = batch if source == "host" else batch.to(simgpu.device(int(source[4:])))
    batch.requires_grad_(batch.is_floating_point())
    return dict(_call(batch, devices, source, scatter_batch))


def _call(batch: Any, devices: list[Any], source: str, scatter_batch: Any) -> list[tuple[str, Any]]:
    before, numbers = gpus.held(), values(batch).clone()
    with gpus.seen() as seen, unraced() as read, leaves(batch=values(batch), devices=devices):
        parts = scatter_batch(batch, devices)
        read += parts if isinstance(parts, list | tuple) else ()
    changed = not torch.equal(values(batch), numbers)
    refuse(changed, "your function changes the numbers in the batch: work on a copy")
    kinds = [type(part).__name__ for part in parts] if isinstance(parts, list | tuple) else [type(parts).__name__]
    fine = isinstance(parts, list | tuple) and all(isinstance(part, torch.Tensor) for part in parts)
    refuse(not fine, "the result is not a list of tensors", measured=", ".join(kinds) or "nothing in it")
    shapes, whole = [list(part.shape) for part in parts], list(batch.shape)
    refuse(any(one[1:] != whole[1:] for one in shapes), "split the rows (dimension 0), not the columns",
           measured=shapes, expected=f"{whole} is the batch's")  # fmt: skip
    refuse(any(one[0] == 0 for one in shapes), "a GPU that gets no rows gets no part either", measured=shapes)
    refuse(len(parts) > len(devices) and sum(one[0] for one in shapes) == whole[0], "there are more parts than GPUs: "
           "split into len(devices) parts", measured=len(parts), expected=len(devices))  # fmt: skip
    places = [gpus.place(part) for part in parts]
    right = [f"GPU {device.index}" for device in devices[: len(parts)]]
    where = "still on the host" if set(places) == {"host"} else "on the wrong GPU"
    refuse(places != right, f"a part is {where}: part i belongs on devices[i]", measured=places, expected=right)
    rows = [values(part) for part in parts]
    result = [("the rows of all parts", torch.cat(rows)), ("the most rows on a GPU", max(map(len, rows)))]
    moved: dict[str, int] = {}
    for place, part in zip(places, rows, strict=True):
        if place != source:
            moved[f"{source} → {place}"] = part.nbytes
    if sum(map(len, rows)) == len(batch):
        _refuse_copies(source, seen["copies"], moved)
        result += _backward(batch, parts)
    parts = part = rows = read = None
    refuse_left(before, "something stays in a GPU's memory when nobody needs the parts any more: who keeps them?")
    return result


def _refuse_copies(source: str, copies: dict[str, int], right: dict[str, int]) -> None:
    words = "more than its own rows go to a GPU: split first, then move"
    if source != "host" and any("host" in link for link in copies):
        words = "rows go through the host: a copy from GPU to GPU needs no stop there"
    elif detours := [link for link in copies if not link.startswith(f"{source} ")]:
        words = f"rows move twice, {detours[0]} too: send each part straight from where it is"
    elif sum(copies.values()) < sum(right.values()):
        words = "fewer bytes move than the parts have: are the numbers rounded on their way?"
    refuse(copies != right, words, measured=links(copies), expected=links(right))


def _backward(batch: Any, parts: Any) -> list[tuple[str, Any]]:
    """What comes back to the batch, if each number of each part has a gradient of its own."""
    if not batch.requires_grad:
        return []
    cut = next((number for number, part in enumerate(parts) if not part.requires_grad), None)
    refuse(cut is not None, f"part {cut} knows nothing of the batch, which requires a gradient: do not detach it")
    weights = torch.arange(values(batch).numel(), dtype=batch.dtype).view(batch.shape)
    for part, own in zip(parts, weights.split([len(part) for part in parts]), strict=True):
        (part * own.to(part.device)).sum().backward()
    gradient, batch.grad = batch.grad, None
    return [("the gradient that comes back to the batch", None if gradient is None else values(gradient))]
