"""Check of ``broadcast_state`` and ``Overlapped``: the same start, and an all-reduce in the hook of each gradient."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from checks.engine import Reference, exercise, leaves, watched
from checks.engine.watching import waits
from checks.labs.ddp_and_bucketing.training import LAB, MEANS, Network, hidden

ALL = "[*model.parameters(), *model.buffers()]"
MEAN = "            parameter.grad /= dist.get_world_size()\n"
WORK = "        work = dist.all_reduce(parameter.grad, async_op=True)\n"
OFFICIAL = Reference(LAB, "broadcast_state Overlapped", {
    "the buffers stay each rank's own: parameters() holds none of them": {ALL: "model.parameters()"},
    "a buffer stays each rank's own, and the tied weight travels twice: state_dict() leaves out buffers that are not "
    "persistent, and has two names for one weight": {ALL: "model.state_dict().values()"},
    "the frozen parameters stay each rank's own":
        {ALL: "[*(p for p in model.parameters() if p.requires_grad), *model.buffers()]"},
    **MEANS,
    "a gradient is divided between the start of its all_reduce and its wait(): divide before or after":
        {WORK: WORK + MEAN[4:], MEAN: ""},
    "what is over is not forgotten: in the next step finish() divides gradients that are still on their way":
        {"        self.travelling.clear()\n": ""},
    "the mean does not arrive in `.grad`, which is this rank's own, divided":
        {WORK: WORK.replace("grad,", "grad.clone(),")},
})  # fmt: skip
CASES = [{"type": "float64", "seed": 1}, {"type": "float32", "seed": 2}]


@exercise(OFFICIAL, CASES, title="Same start, gradients on their way", difficulty=2, minutes=35, ranks=(3, 2))
def overlap(case: dict[str, Any], broadcast_state: Any, Overlapped: Any) -> dict[str, Any]:
    """Judge ``broadcast_state(model)``, and the class ``Overlapped(model)`` with its method ``finish()``."""
    first, types = 10 * case["seed"], case["type"]
    model = Network(first, numbers=first + dist.get_rank(), types=types)  # its numbers differ on all ranks
    state = [*model.named_parameters(), *model.named_buffers()]
    with leaves(), watched(["broadcast"]) as wire:
        broadcast_state(model)
    waits(wire.calls)
    seen: dict[str, Any] = {f"`{name}` after broadcast_state": one.detach().clone() for name, one in state}
    seen["what is trained after broadcast_state"] = [n for n, p in model.named_parameters() if p.requires_grad]
    seen["the bytes that broadcast_state sends"] = wire.sent()
    models = [Network(first + number, types=types) for number in range(2)]
    wrapped = [Overlapped(model) for model in models]
    for number, which in enumerate((0, 1, 0)):  # two objects live side by side
        about, model = f"in step {number + 1}, of model {'AB'[which]}", models[which]
        seen |= model.step(about, wrapped[which].finish, number)
        hidden(model.calls, model.ready)
        seen[f"{about}, the bytes of each all_reduce"] = [call["bytes"] for call in model.calls]
        seen[f"{about}, how many gradients are ready when each all_reduce starts"] = [c["ready"] for c in model.calls]
    return seen
