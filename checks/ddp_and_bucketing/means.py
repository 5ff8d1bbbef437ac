"""Check of ``broadcast_state`` and ``average_gradients``: the same start, the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.core import Reference, watched
from checks.core.watching import waits
from checks.ddp_and_bucketing import networks
from checks.ddp_and_bucketing.training import LAB, MEANS, Trained, kept

ALL = "[*model.parameters(), *model.buffers()]"
SEND = "        dist.broadcast(tensor.detach(), 0)\n"
TWICE = "remove_duplicate=False"
EACH = "\n    for parameter in model.parameters():\n        if parameter.requires_grad:\n"
SUM = "            dist.all_reduce(parameter.grad)\n"
MEAN = "            parameter.grad /= dist.get_world_size()\n"
OFFICIAL = Reference(LAB, "broadcast_state average_gradients", {
    "nothing is broadcast": {SEND: "        pass\n"},
    "the buffers stay each rank's own: parameters() holds none of them": {ALL: "model.parameters()"},
    "a buffer stays each rank's own: state_dict() leaves out those that are not persistent":
        {ALL: "[*model.parameters(), *model.state_dict().values()]"},
    "a buffer stays each rank's own, and the tied weight travels twice: state_dict() leaves out buffers that are not "
    "persistent, and has two names for one weight": {ALL: "model.state_dict().values()"},
    "the frozen parameters stay each rank's own":
        {ALL: "[*(p for p in model.parameters() if p.requires_grad), *model.buffers()]"},
    "it is the state of the last rank, not of rank 0": {"detach(), 0": "detach(), dist.get_world_size() - 1"},
    "the tied weight is broadcast twice: it has two names, but it is one tensor":
        {ALL: "[*dict(model.named_parameters(" + TWICE + ")).values(), *model.buffers()]"},
    **MEANS,
    "the mean does not arrive in `.grad`": {SUM: SUM.replace("grad)", "grad.clone())"), MEAN: ""},
    "the mean does not arrive in `.grad`, which is this rank's own, divided":
        {SUM: SUM.replace("grad)", "grad.clone())")},
    "the tied weight is averaged twice: it has two names, but it is one tensor with one gradient":
        {EACH: EACH.replace("parameter in model.", "_, parameter in model.named_").replace("()", f"({TWICE})")},
    "frozen parameters travel too: they never get a gradient": {
        EACH + SUM + MEAN:
            "\n    for parameter in model.parameters():\n        gradient = parameter.grad\n"
            "        if gradient is None:\n            gradient = torch.zeros_like(parameter)\n"
            "        dist.all_reduce(gradient)\n        gradient /= dist.get_world_size()\n"},
    "frozen parameters get a gradient of zeros: leave their `.grad` None": {
        EACH + SUM + MEAN:
            "\n    for parameter in model.parameters():\n        if parameter.grad is None:\n"
            "            parameter.grad = torch.zeros_like(parameter)\n"
            "        dist.all_reduce(parameter.grad)\n        parameter.grad /= dist.get_world_size()\n"},
    "every gradient travels twice": {EACH + SUM: EACH + SUM + MEAN + SUM},
})  # fmt: skip
CASES = [{"type": "float64", "seed": 1}, {"type": "float32", "seed": 2}]


def play(case: dict[str, Any], broadcast_state: Callable[..., Any], average_gradients: Callable[..., Any]) -> Any:
    model = networks.model(case["seed"], numbers=10 * case["seed"] + dist.get_rank(), branches=1, types=case["type"])
    with kept(model, numbers=False), watched(["broadcast"]) as seen:
        broadcast_state(model)
    waits(seen.calls)
    state: dict[str, torch.Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
    found: dict[str, Any] = {f"`{name}` after broadcast_state": one.detach().clone() for name, one in state.items()}
    found["the bytes that broadcast_state sends"] = seen.sent()
    trained = Trained(model)
    for number in range(1, 3):
        step = trained.step(number, lambda: average_gradients(model))
        found |= step.told(f"in step {number}")
        found[f"in step {number}, the bytes that are all-reduced"] = sum(one["bytes"] for one in step.calls)
    return found
