"""Check of ``replicate_model``: for each GPU a dict of the model's tensors, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from checks.engine import Reference, gpus, refuse
from checks.labs.data_parallel_internals.models import Net, rows, tensors, unchanged
from checks.labs.data_parallel_internals.simulated import cluster, refuse_host, refuse_left, unraced, values

SEND = "tensor.to(device) for"
OFFICIAL = Reference("data_parallel_internals", "replicate_model", {
    "a frozen parameter wants a gradient in a replica: what is frozen stays frozen":
        {SEND: "(tensor if device == devices[0] else tensor.to(device).requires_grad_(tensor.is_floating_point() and "
               "name in dict(model.named_parameters()))) for"},
    "the statistics that the first GPU sees are lost: its replica holds the model's own buffers":
        {SEND: "tensor.to(device, copy=name not in dict(model.named_parameters())) for"},
})  # fmt: skip
CASES = [
    {"devices": [0, 1, 2, 3], "of": "float64"},
    {"devices": [2, 0, 1], "of": "float32"},
    {"devices": [1], "of": "float64"},
]


def play(case: dict[str, Any], replicate_model: Callable[..., Any]) -> dict[str, Any]:
    """Two calls for one model, which is trained in between; the second one with its other GPUs in another order."""
    devices = cluster(case["devices"])
    model = gpus.put(Net(getattr(torch, case["of"]), statistics=True), devices[0])
    found: dict[str, Any] = {}
    for turn in ("first", "second"):
        seen = _call(model, devices, case["of"], replicate_model)
        found |= {f"{what}, in the {turn} call": one for what, one in seen.items()}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad = None
                parameter.mul_(0.9)
        devices[1:] = devices[:0:-1]
    return found


def _call(model: Net, devices: list[Any], of: str, replicate_model: Any) -> dict[str, Any]:
    before, given = gpus.held(), list(devices)
    with gpus.seen() as seen, unraced() as read, unchanged(model):
        replicas = replicate_model(model, devices)
        fine = isinstance(replicas, list | tuple) and all(isinstance(one, Mapping) for one in replicas)
        read += [one for replica in replicas for one in replica.values()] if fine else []
    refuse(devices != given, "your function changes `devices`: leave it as it was")
    kinds = [type(one).__name__ for one in replicas] if isinstance(replicas, list | tuple) else type(replicas).__name__
    refuse(not fine or len(replicas) != len(devices), "the result is not a list with one dict for each GPU",
           measured=kinds, expected=["dict"] * len(devices))  # fmt: skip
    _refuse_names(model, replicas)
    found: dict[str, Any] = {}
    for number, (replica, device) in enumerate(zip(replicas, devices, strict=True)):
        for name, own in tensors(model).items():
            _refuse_tensor(number, name, replica[name], own, device)
            found[f"`{name}` in replica {number}"] = values(replica[name])
            found[f"whether `{name}` in replica {number} requires a gradient"] = replica[name].requires_grad
    refuse_host(seen["copies"], "in your function")
    moved, right = sum(seen["copies"].values()), (len(devices) - 1) * sum(one.nbytes for one in tensors(model).values())
    refuse(moved != right, "other bytes move than each parameter and each buffer once to each other GPU, one that two "
           "layers share too", measured=f"{moved:,} bytes", expected=f"{right:,}")  # fmt: skip
    for number, replica in enumerate(replicas):
        found |= _use(model, number, replica, devices[number], of)
    replicas = replica = read = None
    model.zero_grad()
    refuse_left(before, "something stays in a GPU's memory when nobody needs the replicas any more: who keeps them?")
    return found


def _refuse_names(model: Net, replicas: Any) -> None:
    right, buffers = tensors(model), dict(model.named_buffers())
    shared = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for number, replica in enumerate(replicas):
        missing = next((name for name in right if name not in replica), "")
        words = f"`{missing}` is missing in replica {number}"
        words += ": a replica has buffers too, and named_buffers() finds all" * (missing in buffers)
        refuse(missing, words)
        more = sorted(set(replica) - set(right) - shared)
        refuse(more, f"replica {number} has a name that the model does not have: {more and more[0]}")


def _refuse_tensor(number: int, name: str, copy: Any, own: Any, device: Any) -> None:
    what = f"`{name}` in replica {number}"
    refuse(not isinstance(copy, torch.Tensor), f"{what} is no tensor", measured=type(copy).__name__)
    place, right = gpus.place(copy), f"GPU {device.index}"
    itself = gpus.plain(copy)["memory"] == gpus.plain(own)["memory"]
    refuse(itself and number, f"{what} is the model's own tensor: the replicas share it with the model")
    refuse(place != right, f"{what} is in the wrong place", measured=place, expected=right)
    refuse(not number and not itself and isinstance(own, nn.Parameter), f"{what} is a copy: devices[0] has the "
           "model already, so its replica holds the model's own tensors")  # fmt: skip
    if own.requires_grad and number:
        refuse(copy.is_leaf and copy.requires_grad, f"{what} is a new parameter: gradients end there and never reach "
               "the model")  # fmt: skip
        refuse(not copy.requires_grad, f"{what} knows nothing of the model's parameter, so no gradient comes back")


def _use(model: Net, number: int, replica: Any, device: Any, of: str) -> dict[str, Any]:
    """A forward and a backward through a replica: what comes back, and whose statistics have changed."""
    model.zero_grad()
    functional_call(model, dict(replica), rows(5, of).to(device)).pow(2).sum().backward()
    after = f"after a step through replica {number}"
    found = {f"the gradient of the model's `{name}` {after}": None if one.grad is None else values(one.grad)
             for name, one in model.named_parameters()}  # fmt: skip
    return found | {f"the model's `{name}` {after}": values(one) for name, one in model.named_buffers()}
