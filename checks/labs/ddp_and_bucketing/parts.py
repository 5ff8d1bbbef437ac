"""Check of ``average_used``: means over all ranks of what at least one rank has used, and None for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks.engine import Reference, refuse
from checks.engine.watching import explained
from checks.labs.ddp_and_bucketing import networks
from checks.labs.ddp_and_bucketing.training import LAB, MEANS, Trained, flags

USED = "    used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)\n"
ASK = "    dist.all_reduce(used)\n"
SKIP = "        if by_how_many == 0:\n            continue\n"
ZEROS = "        if parameter.grad is None:\n            parameter.grad = torch.zeros_like(parameter)\n"
SUM = "        dist.all_reduce(parameter.grad)\n"
OFFICIAL = Reference(LAB, "average_used", {
    "what nobody has used gets a gradient of zeros: leave its `.grad` None (an optimizer moves a parameter whose "
    "gradient is zero)": {SKIP: ""},
    "a rank that has not used a parameter gets no gradient, though others have used it":
        {ZEROS: "        mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad\n",
         SUM: "        dist.all_reduce(mine)\n", "parameter.grad /= ": "mine /= "},
    "only what all ranks have used is averaged: it is enough that one has used it":
        {ASK: "    dist.all_reduce(used, op=dist.ReduceOp.MIN)\n"},
    "the mean is taken over those ranks that have used it: divide by the world size, the others count as zero":
        {"/= dist.get_world_size()": "/= by_how_many"},
    "a gradient of zeros is taken for an unused one: what is unused has no gradient, its `.grad` is None":
        {"parameter.grad is not None for": "parameter.grad is not None and bool(parameter.grad.any()) for",
         SKIP: "        if by_how_many == 0:\n            parameter.grad = None\n            continue\n"},
    "what is used is asked in the first step only: it may be another part in each step":
        {USED + ASK: "    known = vars(average_used).setdefault(model, [])\n    if not known:\n    " + USED
                     + "    " + ASK
                     + "        known += used.tolist()\n    used = torch.tensor(known)\n"},
    **MEANS,
    "the mean does not arrive in `.grad`": {SUM: "        dist.all_reduce(parameter.grad.clone())\n"},
})  # fmt: skip
# Branches that each rank uses, step by step; those of branch 1 have gradients of zeros.
_USED = (
    [[[0], [2], [3]], [[2], [0], [2]]],
    [[[], [], []], [[0], [], []]],
    [[[1], [1], [1]], [[0, 1, 2, 3], [1], []]],
    [[[0, 1, 2, 3], [2], []], [[], [3], [0]]],
)
CASES = [
    {"branches_used": used, "type": kind, "seed": number}
    for number, (used, kind) in enumerate(zip(_USED, ("float64", "float32") * 2, strict=True))
]
MANY = 24  # branches of the last model, which has more parameters than a number has bits


def play(case: dict[str, Any], average_used: Callable[..., Any]) -> dict[str, Any]:
    model = networks.model(case["seed"], branches=MANY if case["seed"] == 3 else 4, types=case["type"])
    model.gates[1] = 0.0
    trained, found = Trained(model), {}
    parameters = len([parameter for parameter in model.parameters() if parameter.requires_grad])
    for number, used in enumerate(case["branches_used"]):
        words = "Some ranks have no gradient for what others have used: first learn in one all_reduce of flags what "
        with explained(words + "anybody has used"):
            step = trained.step(number, lambda: average_used(model), used=used)
        found |= step.told(f"in step {number + 1}")
        flags(step.calls, parameters)
        words = "more all-reduces than one for each trainable (not frozen) parameter and one for all flags together"
        refuse(len(step.calls) > parameters + 1, words, measured=len(step.calls), expected=f"at most {parameters + 1}")
    return found
