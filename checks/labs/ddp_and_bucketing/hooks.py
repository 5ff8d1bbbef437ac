"""Check of ``broadcast_state`` and ``Overlapped``: the same start, and an all-reduce in the hook of each gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, refuse, watched
from checks.engine.watching import waits
from checks.labs.ddp_and_bucketing import networks
from checks.labs.ddp_and_bucketing.training import LAB, MEANS, Step, Trained, hidden, kept

ALL = "[*model.parameters(), *model.buffers()]"
SEND = "        dist.broadcast(tensor.detach(), 0)\n"
TWICE = "remove_duplicate=False"
MEAN = "            parameter.grad /= dist.get_world_size()\n"
CLEAR = "        self.travelling.clear()\n"
WORK = "        work = dist.all_reduce(parameter.grad, async_op=True)\n"
LOOP = "        self.travelling = []\n        for parameter in model.parameters():\n"
IF = "            if parameter.requires_grad:"
OFFICIAL = Reference(LAB, "broadcast_state Overlapped", {
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
    "a gradient is divided between the start of its all_reduce and its wait(): divide before or after":
        {WORK: WORK + MEAN[4:], MEAN: ""},
    "what is over is not forgotten: in the next step finish() divides gradients that are still on their way":
        {CLEAR: ""},
    "the mean does not arrive in `.grad`, which is this rank's own, divided":
        {WORK: WORK.replace("grad,", "grad.clone(),")},
    "the mean does not arrive in `.grad`": {WORK: WORK.replace("grad,", "grad.clone(),"), MEAN: ""},
    "every hook sends the gradient of the last parameter: a lambda in a loop sees the loop's last value":
        {LOOP: LOOP + "            self.last = parameter\n", WORK: "        parameter = self.last\n" + WORK},
    "only matrices are averaged: biases and scalars are parameters too": {IF: IF[:-1] + " and parameter.dim() > 1:"},
    "the gradients are averaged in the first step only": {
        WORK: "        if hasattr(self, 'over'):\n            return\n" + WORK,
        CLEAR: CLEAR + "        self.over = True\n"},
})  # fmt: skip
CASES = [{"type": "float64", "seed": 1}, {"type": "float32", "seed": 2}]
MODELS = (0, 1, 0)  # in which model each step trains: two objects live side by side


def play(case: dict[str, Any], broadcast_state: Callable[..., Any], Overlapped: Callable[..., Any]) -> dict[str, Any]:
    found = _started(case, broadcast_state)
    models = [networks.model(10 * case["seed"] + number, types=case["type"]) for number in range(2)]
    trained = [Trained(model, Overlapped) for model in models]
    for number, which in enumerate(MODELS):
        step = trained[which].step(number, trained[which].wrapped.finish)
        found |= step.told(f"in step {number + 1}, of model {'AB'[which]}")
        if step.right:  # (else it is told what is wrong with the numbers)
            hidden(step.calls, len(step.ready))
            _each_by_itself(step)
    return found


def _started(case: dict[str, Any], broadcast_state: Callable[..., Any]) -> dict[str, Any]:
    """The state of a model whose numbers differ on all ranks, after ``broadcast_state``."""
    model = networks.model(case["seed"], numbers=10 * case["seed"] + dist.get_rank(), branches=1, types=case["type"])
    with kept(model, numbers=False), watched(["broadcast"]) as seen:
        broadcast_state(model)
    waits(seen.calls)
    state: dict[str, torch.Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
    found: dict[str, Any] = {f"`{name}` after broadcast_state": one.detach().clone() for name, one in state.items()}
    return found | {"the bytes that broadcast_state sends": seen.sent()}


def _each_by_itself(step: Step) -> None:
    many = len(step.ready)
    words = "several gradients travel in one all_reduce: here each parameter gets its own"
    refuse(len(step.calls) < many, words, measured=f"{len(step.calls)} all-reduces", expected=many)
    words = "more all-reduces than trainable parameters: each gradient travels once, that of a tied weight too"
    refuse(len(step.calls) > many, words, measured=f"{len(step.calls)} all-reduces", expected=many)
    for number, (call, parameter) in enumerate(zip(step.calls, step.ready, strict=True)):
        words = f"all_reduce number {number + 1} does not start in the hook of the gradient that has just become ready"
        figures = {"measured": f"{call['ready']} gradients are ready then", "expected": number + 1}
        refuse(call["ready"] != number + 1, words, **figures)
        got, due = call["bytes"], parameter.nbytes
        words = f"all_reduce number {number + 1} does not carry the gradient that has just become ready, in its type"
        refuse((got, call["dtype"]) != (due, str(parameter.dtype)[6:]), words, measured=f"{got} bytes", expected=due)
