"""Check of ``broadcast_state`` and ``Overlapped``: the same start, and an all-reduce in the hook of each gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, watched
from checks.engine.watching import waits
from checks.labs.ddp_and_bucketing import networks
from checks.labs.ddp_and_bucketing.training import LAB, MEANS, Trained, hidden, kept

ALL = "[*model.parameters(), *model.buffers()]"
SEND = "        dist.broadcast(tensor.detach(), 0)\n"
TWICE = "remove_duplicate=False"
MEAN = "            parameter.grad /= dist.get_world_size()\n"
CLEAR = "        self.travelling.clear()\n"
WORK = "        work = dist.all_reduce(parameter.grad, async_op=True)\n"
LOOP = "        self.travelling = []\n        for parameter in model.parameters():\n"
OFFICIAL = Reference(LAB, "broadcast_state Overlapped", {
    "nothing is broadcast": {SEND: "        pass\n"},
    "the buffers stay each rank's own: parameters() holds none of them": {ALL: "model.parameters()"},
    "a buffer stays each rank's own: state_dict() leaves out those that are not persistent":
        {ALL: "[*model.parameters(), *model.state_dict().values()]"},
    "a buffer stays each rank's own, and the tied weight travels twice: state_dict() leaves out buffers that are not "
    "persistent, and has two names for one weight": {ALL: "model.state_dict().values()"},
    "the frozen parameters stay each rank's own":
        {ALL: "[*(p for p in model.parameters() if p.requires_grad), *model.buffers()]"},
    "the tied weight is broadcast twice: it has two names, but it is one tensor":
        {ALL: "[*dict(model.named_parameters(" + TWICE + ")).values(), *model.buffers()]"},
    **MEANS,
    "a gradient is divided between the start of its all_reduce and its wait(): divide before or after":
        {WORK: WORK + MEAN[4:], MEAN: ""},
    "what is over is not forgotten: in the next step finish() divides gradients that are still on their way":
        {CLEAR: ""},
    "the mean does not arrive in `.grad`, which is this rank's own, divided":
        {WORK: WORK.replace("grad,", "grad.clone(),")},
    "every hook sends the gradient of the last parameter: a lambda in a loop sees the loop's last value":
        {LOOP: LOOP + "            self.last = parameter\n", WORK: "        parameter = self.last\n" + WORK},
})  # fmt: skip
CASES = [{"type": "float64", "seed": 1}, {"type": "float32", "seed": 2}]
MODELS = (0, 1, 0)  # in which model each step trains: two objects live side by side


def play(case: dict[str, Any], broadcast_state: Callable[..., Any], Overlapped: Callable[..., Any]) -> dict[str, Any]:
    seen = _started(case, broadcast_state)
    models = [networks.model(10 * case["seed"] + number, types=case["type"]) for number in range(2)]
    trained = [Trained(model, Overlapped) for model in models]
    for number, which in enumerate(MODELS):
        about = f"in step {number + 1}, of model {'AB'[which]}"
        step = trained[which].step(number, trained[which].wrapped.finish)
        hidden(step.calls, step.ready)
        seen |= step.told(about)
        seen[f"{about}, the bytes of each all_reduce"] = [call["bytes"] for call in step.calls]
        seen[f"{about}, how many gradients are ready when each all_reduce starts"] = [c["ready"] for c in step.calls]
    return seen


def _started(case: dict[str, Any], broadcast_state: Callable[..., Any]) -> dict[str, Any]:
    """The state of a model whose numbers differ on all ranks, after ``broadcast_state``."""
    model = networks.model(case["seed"], numbers=10 * case["seed"] + dist.get_rank(), branches=1, types=case["type"])
    with kept(model, numbers=False), watched(["broadcast"]) as wire:
        broadcast_state(model)
    waits(wire.calls)
    state: dict[str, torch.Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
    seen: dict[str, Any] = {f"`{name}` after broadcast_state": one.detach().clone() for name, one in state.items()}
    return seen | {"the bytes that broadcast_state sends": wire.sent()}
