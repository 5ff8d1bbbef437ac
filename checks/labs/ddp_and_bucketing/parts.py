"""Check of ``average_used``: means over all ranks of what at least one rank has used, and None for the rest."""

from __future__ import annotations

from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.watching import explained
from checks.labs.ddp_and_bucketing.training import LAB, MEANS, Network, flags

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
    **MEANS,
    "the mean does not arrive in `.grad`": {SUM: "        dist.all_reduce(parameter.grad.clone())\n"},
})  # fmt: skip
# By step and rank, the branches that are used; the gradients of branch 1 are zeros.
_USED = ([[[0], [2], [3]], [[2], [0], [2]]], [[[], [], []], [[0], [], []]], [[[1], [1], [1]], [[0, 1, 2, 3], [1], []]],
         [[[0, 1, 2, 3], [2], []], [[], [3], [0]]])  # fmt: skip
CASES = [{"branches_used": used, "type": ("float64", "float32")[i % 2], "seed": i} for i, used in enumerate(_USED)]


@exercise(OFFICIAL, CASES, title="Unused parameters", difficulty=2, minutes=25, ranks=(3, 2))
def unused(case: dict[str, Any], average_used: Any) -> dict[str, Any]:
    """Judge ``average_used(model)``, for models of which each rank uses another part."""
    many = 24 if case["seed"] == 3 else 4  # (this model has more parameters than a number has bits)
    model, seen = Network(case["seed"], branches=many, types=case["type"]), dict[str, Any]()
    model.gates[1] = 0.0
    most = 1 + sum(parameter.requires_grad for parameter in model.parameters())
    words = "Some ranks have no gradient for what others have used: first learn in one all_reduce of flags what "
    for number, used in enumerate(case["branches_used"]):
        with explained(words + "anybody has used"):
            seen |= model.step(f"in step {number + 1}", lambda: average_used(model), number, used=used)
        flags(model.calls, most - 1)
        told = "more all-reduces than one for each trainable (not frozen) parameter and one for all flags together"
        refuse(len(model.calls) > most, told, measured=len(model.calls), expected=f"at most {most}")
    return seen
