"""What ``forward`` and ``loss`` share: steps of training on simulated GPUs. What comes out, who works, what moves."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn

import simgpu
from checks.engine import gpus, refuse
from checks.labs.data_parallel_internals.models import CLASSES, FLOPS, Net, rows, tensors, unchanged
from checks.labs.data_parallel_internals.simulated import (
    cluster,
    refuse_host,
    refuse_late,
    refuse_left,
    unraced,
    values,
)

H100 = simgpu.gpu("H100")
SLOW = dataclasses.replace(H100, name="slow", flops={kind: rate / 1e9 for kind, rate in H100.flops.items()})
"""Computing takes longer than launching and copying do, so it shows who waits for whom."""
MOST_GATHERED = 16  # bytes of a loss, and of a count beside it
WEIGHTS = 64  # bytes that the host may send: numbers that an answer itself makes
REPLICAS = "replicate_model(model, devices[: len(parts)])"
COPIED = "[dict(one.named_parameters()) | dict(one.named_buffers()) for one in [{}]]"
COPY = "__import__('copy').deepcopy(model).to(device) for device in devices[{}len(parts)]"
COMMON = {
    "no gradient comes back to the model: its copies forget what they were copied from":
        {REPLICAS: COPIED.format(COPY.format(": "))},
    "the gradient comes from the rows of the first GPU alone: copies of the model forget what they were copied from":
        {REPLICAS: COPIED.format("model, *(" + COPY.format("1 : ") + ")")},
    "GPUs that have no rows get the model too: replicate it for as many GPUs as have rows":
        {"devices[: len(parts)]": "devices", "strict=True": "strict=False"},
}  # fmt: skip
"""Mistakes in both exercises."""
LIBRARY = lambda *_, **__: refuse(True, "nn.DataParallel does not count: write its four steps")  # noqa: E731


def play(case: dict[str, Any], function: Callable[..., Any], loss: bool = False) -> dict[str, Any]:
    """One model's steps with a function that returns all outputs, or their loss."""
    devices = cluster(case["devices"], gpu=SLOW, launch_s=1e-7)
    model = gpus.put(Net(getattr(torch, case["of"]), "statistics" in case), devices[0])
    if "eval" in case:
        model.eval()
    with torch.no_grad():
        model.head.bias[0] -= case.get("class_0_has_logits_lower_by", 0)
    found: dict[str, Any] = {}
    for number in range(1, case.get("steps", 1) + 1):
        before = gpus.held()
        seen = _step(case, model, devices, number, function, loss)
        refuse_left(before, "something stays in a GPU's memory after the step: who keeps replicas, parts or outputs?")
        found |= {f"{what}, in step {number}": one for what, one in seen.items()}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.8)
    return found


def _step(case: Any, model: Net, devices: Any, number: int, function: Any, loss: bool) -> dict[str, Any]:
    given, first = list(devices), devices[0]
    batch = rows(case["rows"], case["of"], number).to(first).requires_grad_("batch_learns" in case)
    targets = (torch.arange(case["rows"]) * number % CLASSES).to(first)
    inputs = {"batch": batch, "targets": targets} if loss else {"batch": batch}
    numbers = {name: values(one) for name, one in inputs.items()}
    library = mock.patch.object(sys.modules[nn.DataParallel.__module__], "scatter_kwargs", LIBRARY)
    with torch.set_grad_enabled("eval" not in case), library, unraced() as read, gpus.seen() as seen:
        with unchanged(model, buffers=False):
            result = function(model, *inputs.values(), devices)
        read.append(result)
    refuse(not isinstance(result, torch.Tensor), "the result is not one tensor", measured=type(result).__name__)
    refuse(loss and result.dim(), "the loss is one number, a tensor with no dimensions", measured=list(result.shape))
    refuse(devices != given, "your function changes `devices`: leave it as it was")
    changed = next((name for name, one in inputs.items() if not torch.equal(values(one), numbers[name])), "")
    refuse(changed, f"your function changes the numbers in `{changed}`")
    place, right = gpus.place(result), f"GPU {first.index}"
    refuse(place != right, "the result is not on devices[0]", measured=place, expected=right)
    found = {"the result": values(result)}
    if "eval" not in case:
        refuse(not result.requires_grad, "the result knows nothing of the replicas, so no gradient goes back: keep "
               "tensors, without detach, item or no_grad")  # fmt: skip
        weights = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).view(result.shape)
        (result * weights.to(first)).sum().backward()
        for name, one in [*model.named_parameters(), ("batch", batch)]:
            found[f"the gradient of `{name}`"] = None if one.grad is None else values(one.grad)
    found |= {f"the model's `{name}`": values(one) for name, one in model.named_buffers()}
    if not loss:
        refuse_late(seen["spans"], seen["waits"] + seen["pauses"])
    model.zero_grad()
    return found | _moved(case, seen, model, numbers, right, loss)


def _moved(case: Any, seen: Any, model: Net, numbers: Any, first: str, loss: bool) -> dict[str, Any]:
    """Who has computed how many rows, and what has moved for them."""
    copies = {link: sent for link, sent in seen["copies"].items() if not (link.startswith("host") and sent <= WEIGHTS)}
    refuse_host(copies, "in your function")
    worked = {f"GPU {gpu}": flops / FLOPS for gpu, flops in enumerate(seen["flops"]["forward"]) if flops}
    total, others = sum(worked.values()), len(worked.keys() - {first})
    away = round(total - worked.get(first, 0))
    came = sum(sent for link, sent in copies.items() if link.endswith(f"→ {first}"))
    least = 0 if loss else away * CLASSES * numbers["batch"].element_size()
    most = least + MOST_GATHERED * loss * others
    words = "other bytes go to the first GPU than the outputs of the others, each once"
    words = "more than a loss of each GPU goes to the first one: compute it where the logits are" if loss else words
    wrong = round(total) == case["rows"] and not least <= came <= most
    refuse(wrong, words, measured=f"{came} bytes", expected=f"{least} to {most}")
    state, row = sum(one.nbytes for one in tensors(model).values()), sum(one[0].nbytes for one in numbers.values())
    more = sum(copies.values()) - came - state * others - row * away
    return {
        "rows that go forward, on all GPUs together": total,
        "the most rows on a GPU": max(worked.values()),
        "bytes that the other GPUs get beside the model and their own rows": more,
    }
