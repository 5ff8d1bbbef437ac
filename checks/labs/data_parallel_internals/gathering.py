"""Check of ``Gather``: what it makes, what comes back, which bytes move and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from checks.engine import Reference, gpus, refuse
from checks.labs.data_parallel_internals.simulated import cluster, refuse_host, unraced, values

ROWS = "gradient.split(ctx.rows)"
PUT = "torch.cat([part.to(device) for part in parts])"
OFFICIAL = Reference("data_parallel_internals", "Gather", {
    "Gather puts the rows of the last part first": {PUT: PUT.replace("in parts", "in reversed(parts)")},
    "the gradients of Gather come in another order than the parts": {ROWS: ROWS + "[::-1]"},
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


def play(case: dict[str, Any], Gather: Any) -> dict[str, Any]:
    """Forward, another forward, and the backward of the first one."""
    devices = cluster(case["devices"])
    target = devices[len(devices) // 2]
    leaves = _leaves(case, devices, 0)
    for leaf in leaves[1:] if "trained" in case else ():
        leaf.requires_grad_(False)

    def gather(*parts: Tensor) -> Tensor:
        made: Tensor = Gather.apply(target, *parts)
        return made

    with gpus.seen() as ahead, unraced() as read:
        out = gather(*(leaf * 2 for leaf in leaves))  # (no leaves: nobody else holds them)
        refuse(not isinstance(out, Tensor), "Gather.apply returns no tensor", measured=type(out).__name__)
        read.append(out)
    place, wanted = gpus.place(out), f"GPU {target.index}"
    refuse(place != wanted, "what Gather returns is not where it belongs", measured=place, expected=wanted)
    refuse(not out.requires_grad, "what Gather returns does not know what it was made from")
    refuse_host(ahead["copies"], "in the forward of Gather")
    moves = sum(ahead["copies"].values())
    found = {"what Gather returns": values(out), "bytes that move in the forward of Gather": moves}
    _refuse_kept(gather, _leaves(case, devices[::-1], 1))
    coming = (torch.arange(out.numel(), dtype=out.dtype) / 3).view(out.shape).to(target)
    with gpus.seen() as back:
        try:
            out.backward(coming)
        except NotImplementedError:
            raise
        except Exception as error:  # (autograd does not say whose it is)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            refuse(True, f"the backward of Gather ended with {text}. Another forward has been in between")
    refuse_host(back["copies"], "in the backward of Gather")
    found["the gradients after a backward through Gather"] = [
        None if leaf.grad is None else values(leaf.grad) for leaf in leaves if leaf.requires_grad
    ]
    moved = sum(back["copies"].values())
    free = "trained" in case and moved <= moves  # a gradient that nobody needs may stay, or go
    return found | {"bytes that move in the backward of Gather": moves if free else moved}


def _leaves(case: dict[str, Any], there: list[Any], more: int) -> list[Tensor]:
    found = []
    for number, (device, rows) in enumerate(zip(there, case["rows"], strict=True)):
        shape = (rows + more, *case.get("row", (3,)))
        numbers = torch.arange(torch.Size(shape).numel(), dtype=getattr(torch, case["of"])).view(shape) / 7 + number
        found.append(numbers.to(device).requires_grad_())
    return found


def _refuse_kept(call: Callable[..., Any], leaves: list[Tensor]) -> None:
    """Between forward and backward, when nobody else holds what went in or came out."""
    before = sum(gpus.held())
    total = call(*(leaf * 2 for leaf in leaves)).sum()  # (with its graph)
    kept = sum(gpus.held()) - before - gpus.rounded(total.nbytes)
    refuse(kept > 0, "Gather keeps a tensor alive for its backward, which needs no more than sizes and devices",
           measured=f"{kept} bytes", expected="none")  # fmt: skip
