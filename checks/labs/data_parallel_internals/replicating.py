"""Check of ``replicate_model``: for each GPU a dict of the model's tensors, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.func import functional_call

from checks.engine import Reference, exercise, gpus, leaves, refuse
from checks.engine.plain import kind_of
from checks.labs.data_parallel_internals.models import Net, cluster, refuse_moved, rows, tensors, values

OFFICIAL = Reference("data_parallel_internals", "replicate_model")
CASES = [
    {"devices": [0, 1, 2, 3], "of": "float64"},
    {"devices": [2, 0, 1], "of": "float32"},
    {"devices": [1], "of": "float64"},
]


@exercise(OFFICIAL, CASES, title="Replicate the model", difficulty=2, minutes=15)
def replicate(case: dict[str, Any], replicate_model: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``replicate_model(model, devices)``, which returns for each GPU a dict of names and tensors."""
    devices = cluster(case["devices"])
    model = gpus.put(Net(statistics=True).to(getattr(torch, case["of"])), devices[0])
    with leaves(model=model, devices=devices), gpus.seen() as seen:
        replicas = replicate_model(model, devices)
    refuse_moved(model, devices[0])
    fine = isinstance(replicas, list | tuple) and all(isinstance(replica, Mapping) for replica in replicas)
    fault = "the result is not a list with one dict for each GPU"
    refuse(not fine or len(replicas) != len(devices), fault, measured=kind_of(replicas), expected=len(devices))
    fault = "bytes that move (each parameter and each buffer, once to each other GPU)"
    found: dict[str, Any] = {fault: sum(seen["copies"].values())}
    for number, (replica, device) in enumerate(zip(replicas, devices, strict=True)):
        missing = [name for name in tensors(model) if name not in replica]
        refuse(missing, f"replica {number} has no {missing}: it has buffers too, and named_buffers() finds all")
        for name, own in tensors(model).items():
            copy, what = replica[name], f"`{name}` in replica {number}"
            place, right = gpus.place(copy), f"GPU {device.index}"
            refuse(place != right, f"{what} is in the wrong place", measured=place, expected=right)
            other = gpus.raw(copy).data_ptr() != gpus.raw(own).data_ptr()
            fault = "is a copy: devices[0] has the model already, so its replica holds the model's own tensors"
            refuse(number == 0 and other, f"{what} {fault}")
            fault = "knows nothing of the model's parameter: gradients end there and never reach the model"
            refuse(own.requires_grad and copy.is_leaf and copy is not own, f"{what} {fault}")
            found[what] = values(copy)
            found[f"whether {what} requires a gradient"] = copy.requires_grad
        functional_call(model, dict(replica), rows(5, case["of"]).to(device)).pow(2).sum().backward()
        for name, own in tensors(model).items():
            found[f"the model's `{name}` after a step through replica {number}"] = values(own)
            gradient = None if own.grad is None else values(own.grad)
            found[f"the gradient of `{name}` after a step through replica {number}"] = gradient
        model.zero_grad()
    return found
