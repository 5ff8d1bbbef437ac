"""What ``forward`` and ``loss`` share: a step of training on simulated GPUs. What comes out, who works, what moves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn

import simgpu
from checks.engine import gpus, leaves, refuse
from checks.engine.plain import kind_of
from checks.labs.data_parallel_internals.models import CLASSES, FLOPS, Net, cluster, refuse_moved, rows, tensors, values

H100 = simgpu.gpu("H100")
# Computing takes longer than launching and copying do, so it shows who waits for whom.
SLOW = dataclasses.replace(H100, name="slow", flops={kind: rate / 1e9 for kind, rate in H100.flops.items()})
LOSSES = 16  # bytes of a loss, and of a count beside it
WEIGHTS = 64  # bytes that the host may send: numbers that an answer itself makes
REPLICAS = "replicate_model(model, devices[: len(parts)])"
COPIES = "(__import__('copy').deepcopy(model).to(device) for device in devices[: len(parts)])"
COMMON = {  # mistakes in both exercises
    "no gradient comes back to the model: its copies forget what they were copied from":
        {REPLICAS: f"[dict(one.named_parameters()) | dict(one.named_buffers()) for one in {COPIES}]"},
    "GPUs that have no rows get the model too: replicate it for as many GPUs as have rows":
        {"devices[: len(parts)]": "devices", "strict=True": "strict=False"},
}  # fmt: skip


def play(case: dict[str, Any], function: Callable[..., Any], loss: bool = False) -> dict[str, Any]:
    """One step of a model with a function that returns all outputs, or their loss."""
    devices = cluster(case["devices"], gpu=SLOW, launch_s=1e-7)
    first, trains = devices[0], "eval" not in case
    model = gpus.put(Net("statistics" in case).to(getattr(torch, case["of"])).train(trains), first)
    with torch.no_grad():
        model.head.bias[0] -= case.get("class_0_has_logits_lower_by", 0)
    inputs = {"batch": rows(case["rows"], case["of"]).to(first).requires_grad_("batch_learns" in case)}
    if loss:
        inputs["targets"] = (torch.arange(case["rows"]) % CLASSES).to(first)
    given = {name: gpus.raw(tensor) for name, tensor in (inputs | dict(model.named_parameters())).items()}
    library = mock.patch.object(nn.DataParallel, "forward", lambda *_: refuse(True, "nn.DataParallel does not count"))
    with torch.set_grad_enabled(trains), library, leaves(devices=devices, **given), gpus.seen() as seen:
        result = function(model, *inputs.values(), devices)
    refuse_moved(model, first)
    refuse(not isinstance(result, torch.Tensor), "the result is not one tensor", measured=kind_of(result))
    refuse(loss and result.dim(), "the loss is one number, a tensor with no dimensions", measured=list(result.shape))
    found = _work(case["rows"], seen, model, inputs, f"GPU {first.index}", loss)
    found |= {"the result": values(result), "where the result is": gpus.place(result)}
    if trains:
        fault = "the result knows nothing of the replicas, so no gradient goes back: no detach, item or no_grad"
        refuse(not result.requires_grad, fault)
        weights = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).view(result.shape)
        (result * weights.to(result.device)).sum().backward()
    for name, tensor in (tensors(model) | inputs).items():
        found[f"the gradient of `{name}`"] = None if tensor.grad is None else values(tensor.grad)
    if not loss:
        _refuse_late(seen["spans"], seen["waits"] + seen["pauses"])
    return found | {f"the model's `{name}`": values(buffer) for name, buffer in model.named_buffers()}


def _work(count: int, seen: Any, model: Net, inputs: dict[str, Any], first: str, loss: bool) -> dict[str, Any]:
    """Who has computed how many rows, and what has moved for them."""
    copies = [sent for link, sent in seen["copies"].items() if not (link.startswith("host") and sent <= WEIGHTS)]
    worked = {f"GPU {gpu}": flops / FLOPS for gpu, flops in enumerate(seen["flops"]["forward"]) if flops}
    away = {gpu: rows for gpu, rows in worked.items() if gpu != first}
    row = sum(tensor.nbytes for tensor in inputs.values()) // count
    row += 0 if loss else CLASSES * inputs["batch"].element_size()
    state = sum(tensor.nbytes for tensor in tensors(model).values())
    more = sum(copies) - len(away) * state - round(sum(away.values())) * row
    outputs = "a loss of each GPU (compute it where the logits are)" if loss else "outputs, each once"
    return {
        "rows that go forward, on all GPUs together": sum(worked.values()),
        "the most rows on a GPU": max(worked.values()),
        f"bytes that move, beside the model, rows and {outputs}": max(0, more - len(away) * LOSSES) if loss else more,
    }


def _refuse_late(spans: dict[int, tuple[float, float]], waits: int) -> None:
    """Of the times in which GPUs compute, no one begins after another has ended."""
    late = max((start, gpu) for gpu, (start, _) in spans.items())
    done = min((end, gpu) for gpu, (_, end) in spans.items())
    why = "a copy waits for all that its GPU was given before: copy everything first, then run"
    why = "the host waits for a result: only launch" if waits else why
    refuse(late[0] > done[0], f"GPU {late[1]} begins to compute when GPU {done[1]} has ended: {why}")
