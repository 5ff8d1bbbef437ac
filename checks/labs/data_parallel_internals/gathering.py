"""Check of ``Gather``: what it makes, what comes back, which bytes move and what is kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from checks.engine import Reference, exercise, gpus, refuse
from checks.engine.plain import kind_of
from checks.labs.data_parallel_internals.models import cluster, values

ROWS = "gradient.split(ctx.rows)"
PUT = "torch.cat([part.to(device) for part in parts])"
OFFICIAL = Reference("data_parallel_internals", "Gather", {
    "the gradients of Gather come in another order than the parts": {ROWS: ROWS + "[::-1]"},
    "tensors go through the host: copy from GPU to GPU": {PUT: PUT.replace(".to", ".cpu().to")},
    "the whole gradient goes to each part's GPU: split first, then move":
        {"part.to(device) for part, device in zip(parts, ctx.devices, strict=True)":
         "gradient.to(device).split(ctx.rows)[index] for index, device in enumerate(ctx.devices)"},
})  # fmt: skip
CASES = [
    {"devices": [0, 1, 2, 3], "rows": [2, 2, 2, 2], "of": "float64"},
    {"devices": [2, 0, 1], "rows": [3, 1, 2], "of": "float32", "trained": "only the first"},
    {"devices": [1, 0], "rows": [1, 4], "of": "float64", "row": ()},
    {"devices": [1], "rows": [3], "of": "float32"},
    {"devices": [3, 0, 4, 1, 2], "rows": [1, 3, 2, 1, 1], "of": "float64", "row": (2, 2)},
]


@exercise(OFFICIAL, CASES, title="Gather, backward included", difficulty=3, minutes=20)
def gather(case: dict[str, Any], Gather: Any) -> dict[str, Any]:
    """Judge a subclass of ``torch.autograd.Function``: ``Gather.apply(device, *parts)``."""
    devices = cluster(case["devices"])
    target = devices[len(devices) // 2]
    parts = _parts(case, devices)
    for part in parts[1:] if "trained" in case else ():
        part.requires_grad_(False)
    with gpus.seen() as ahead:
        whole = Gather.apply(target, *(part * 2 for part in parts))  # (no leaves: nobody else holds them)
    refuse(not isinstance(whole, Tensor), "Gather.apply returns no tensor", measured=kind_of(whole))
    refuse(not whole.requires_grad, "what Gather returns does not know what it was made from")
    others, before = _parts(case, devices[::-1], more=1), sum(gpus.held())
    total = Gather.apply(target, *(part * 2 for part in others)).sum()  # (with its graph)
    kept = sum(gpus.held()) - before - gpus.rounded(total.nbytes)
    fault = "Gather keeps a tensor alive for its backward, which needs no more than sizes and devices"
    refuse(kept > 0, fault, measured=f"{kept} bytes", expected="none")
    coming = (torch.arange(whole.numel(), dtype=whole.dtype) / 3).view(whole.shape).to(whole.device)
    with gpus.seen() as back:
        try:
            whole.backward(coming)
        except NotImplementedError:
            raise
        except Exception as error:  # (autograd does not say whose it is)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            refuse(True, f"the backward of Gather ended with {text}. Another forward has been in between")
    moved, moved_back = (sum(seen["copies"].values()) for seen in (ahead, back))
    moved_back = max(moved, moved_back) if "trained" in case else moved_back  # (what nobody needs may stay, or go)
    return {
        "what Gather returns": values(whole),
        "where it is": gpus.place(whole),
        "bytes that move in forward, from GPU to GPU": moved,
        "the gradients of the parts": [None if part.grad is None else values(part.grad) for part in parts],
        "bytes that move in backward, from GPU to GPU": moved_back,
    }


def _parts(case: dict[str, Any], devices: list[Any], more: int = 0) -> list[Tensor]:
    """One on each GPU."""
    torch.manual_seed(more)
    shapes = [(rows + more, *case.get("row", (3,))) for rows in case["rows"]]
    parts = [torch.randn(shape, dtype=getattr(torch, case["of"])) for shape in shapes]
    return [part.to(device).requires_grad_() for part, device in zip(parts, devices, strict=True)]
