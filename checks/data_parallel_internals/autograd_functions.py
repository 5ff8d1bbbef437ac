"""Check of ``Broadcast`` and ``Gather``: what they make, what comes back, which bytes move and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from checks.core import Reference, gpus, refuse
from checks.data_parallel_internals.simulated import cluster, refuse_host, unraced, values

SUM = "sum(gradient.to(ctx.device) for gradient in gradients)"
ROWS = "gradient.split(ctx.rows)"
PUT = "torch.cat([part.to(device) for part in parts])"
OFFICIAL = Reference("data_parallel_internals", "Broadcast Gather", {
    "the tensor gets the gradient of one copy only: all of them go into the sum": {SUM: "gradients[0].to(ctx.device)"},
    "the tensor gets the mean over the copies: it is their sum": {SUM: SUM + " / ctx.copies"},
    "Gather puts the rows of the last part first": {PUT: PUT.replace("in parts", "in reversed(parts)")},
    "the gradients of Gather come in another order than the parts": {ROWS: ROWS + "[::-1]"},
    "the gradients of Broadcast are added on another GPU and then moved once more":
        {SUM: "sum(gradient.to(gradients[-1].device) for gradient in gradients).to(ctx.device)"},
    "the whole gradient goes to each part's GPU: split first, then move":
        {"part.to(device) for part, device in zip(parts, ctx.devices, strict=True)":
         "gradient.to(device).split(ctx.rows)[index] for index, device in enumerate(ctx.devices)"},
})  # fmt: skip
CASES = [
    {"devices": [0, 1, 2, 3], "rows": [2, 2, 2, 2], "of": "float64"},
    {"devices": [2, 0, 1], "rows": [3, 1, 2], "of": "float32", "trained_or_used": "only the first"},
    {"devices": [1, 0], "rows": [1, 4], "of": "float64", "row": ()},
    {"devices": [1], "rows": [3], "of": "float32"},
    {"devices": [3, 0, 4, 1, 2], "rows": [1, 3, 2, 1, 1], "of": "float64", "row": (2, 2)},
]


def play(case: dict[str, Any], Broadcast: Any, Gather: Any) -> dict[str, Any]:
    devices = cluster(case["devices"])
    target = devices[len(devices) // 2]

    def broadcast(tensor: Tensor) -> Any:
        return Broadcast.apply(tensor, *sorted(devices, key=lambda one: one != tensor.device))  # (its own first)

    copies = _play(case, "Broadcast", broadcast, devices, 1, devices)
    return copies | _play(case, "Gather", lambda *parts: Gather.apply(target, *parts), devices, len(devices), [target])


def _play(case: dict[str, Any], name: str, call: Callable[..., Any], devices: list[Any], count: int, right: Any) -> Any:
    """Forward, another forward, and the backward of the first one.

    Args:
        count: how many tensors go in.
        right: where those have to be that come out.
    """
    only = "trained_or_used" in case
    leaves = _leaves(case, devices[:count], 0)
    for leaf in leaves[1:] if only else ():
        leaf.requires_grad_(False)
    with gpus.seen() as ahead, unraced() as read:
        outs = call(*(leaf * 2 for leaf in leaves))  # (no leaves: nobody else holds them)
        kind = type(outs).__name__
        refuse(not isinstance(outs, tuple if name == "Broadcast" else Tensor), f"{name}.apply returns no "
               f"{'tuple of copies' if name == 'Broadcast' else 'tensor'}", measured=kind)  # fmt: skip
        outs = [outs] if isinstance(outs, Tensor) else list(outs)
        read += outs
    places = [gpus.place(out) if isinstance(out, Tensor) else type(out).__name__ for out in outs]
    wanted = [f"GPU {device.index}" for device in right]
    refuse(places != wanted, f"what {name} returns is not where it belongs", measured=places, expected=wanted)
    refuse(not all(out.requires_grad for out in outs), f"what {name} returns does not know what it was made from")
    refuse_host(ahead["copies"], f"in the forward of {name}")
    found: dict[str, Any] = {f"what {name} returns": [values(out) for out in outs]}
    found[f"bytes that move in the forward of {name}"] = sum(ahead["copies"].values())
    _refuse_kept(name, call, _leaves(case, devices[::-1][:count], 1))
    used = outs[:1] if only else outs
    coming = [(torch.arange(out.numel(), dtype=out.dtype) / (3 + number)).view(out.shape).to(out.device)
              for number, out in enumerate(used)]  # fmt: skip
    numbers = [values(one) for one in coming]
    with gpus.seen() as back:
        try:
            torch.autograd.backward(used, coming)
        except NotImplementedError:
            raise
        except Exception as error:  # (autograd does not say whose it is)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            refuse(True, f"the backward of {name} ended with {text}. Another forward has been in between")
    refuse_host(back["copies"], f"in the backward of {name}")
    changed = not all(torch.equal(values(one), was) for one, was in zip(coming, numbers, strict=True))
    refuse(changed, f"the backward of {name} changes a gradient that it gets: it belongs to somebody else")
    found[f"the gradients after a backward through {name}"] = [
        None if leaf.grad is None else values(leaf.grad) for leaf in leaves if leaf.requires_grad
    ]
    moved, most = sum(back["copies"].values()), found[f"bytes that move in the forward of {name}"]
    least = 0 if only else most  # a gradient that nobody needs may stay, or go as zeros
    found[f"bytes that move in the backward of {name}"] = most if least <= moved <= most else moved
    return found


def _leaves(case: dict[str, Any], there: list[Any], more: int) -> list[Tensor]:
    found = []
    for number, (device, rows) in enumerate(zip(there, case["rows"], strict=False)):
        shape = (rows + more, *case.get("row", (3,)))
        numbers = torch.arange(torch.Size(shape).numel(), dtype=getattr(torch, case["of"])).view(shape) / 7 + number
        found.append(numbers.to(device).requires_grad_())
    return found


def _refuse_kept(name: str, call: Callable[..., Any], leaves: list[Tensor]) -> None:
    """Between forward and backward, when nobody else holds what went in or came out."""
    before = sum(gpus.held())
    outs = call(*(leaf * 2 for leaf in leaves))
    sums = [out.sum() for out in ([outs] if isinstance(outs, Tensor) else outs)]  # (with their graph)
    outs = None
    kept = sum(gpus.held()) - before - sum(gpus.rounded(one.nbytes) for one in sums)
    refuse(kept > 0, f"{name} keeps a tensor alive for its backward, which needs no more than sizes and devices",
           measured=f"{kept} bytes", expected="none")  # fmt: skip
