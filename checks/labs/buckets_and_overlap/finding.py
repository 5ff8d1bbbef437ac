"""Check of ``FindingUnused``: what is unused is found in the graph, so that buckets go while backward computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from checks.engine import Reference, exercise, refuse
from checks.engine.watching import explained
from checks.labs.ddp_and_bucketing.training import BOTH, MEANS, Network, flags, hidden

MARK = (
    "        for parameter in self.number:\n            if parameter not in self.used:\n"
    "                self.ready(parameter)\n"
)
FLAGS = "        flags = torch.tensor("
ASK = "        dist.all_reduce(flags)\n"
USED = "if by_how_many[p] > 0:"
OFFICIAL = Reference("buckets_and_overlap", "FindingUnused", {
    "what nobody has used gets a gradient of zeros: leave its `.grad` None": {USED: "if True:"},
    "a rank that has not used a parameter gets no gradient, though others have used it": {USED: "if p in self.used:"},
    "only what all ranks have used is averaged: it is enough that one has used it":
        {ASK: ASK.replace("flags)", "flags, op=dist.ReduceOp.MIN)")},
    "the mean is taken over those ranks that have used it: divide by the world size, the others count as zero":
        {"flat /= dist.get_world_size()": "pass", "part.view_as(p)": "part.view_as(p) / by_how_many[p]"},
    "a gradient of zeros is taken for an unused one: what backward reaches is used": {
        "[parameter in self.used for": "[parameter in self.used and bool(parameter.grad.any()) for",
        USED: "if not by_how_many[p]:\n                    p.grad = None\n                else:"},
    "a bucket starts too late: what this backward never reaches is nothing to wait for until finish()":
        {MARK: "", FLAGS: MARK + FLAGS},
    "the walk goes on with the first of a node's next_functions only: follow all of them":
        {"in node.next_functions]": "in node.next_functions[:1]]"},
    **MEANS,
})  # fmt: skip
STEPS = ([[0], [2], [3]], [[2], [], [0, 3]], [[], [1], [1]], [[], [], []], [[3], [0, 2], [2]])  # branches, by rank
CASES = [{"buckets": order, "seed": seed} for seed, order in enumerate(("the last layers first", "branches first"))]


@exercise(OFFICIAL, CASES, title="Unused parameters, overlap kept", difficulty=3, minutes=35, ranks=(3, 2))
def unused_overlap(case: dict[str, Any], FindingUnused: Callable[..., Any]) -> dict[str, Any]:
    """Judge the class ``FindingUnused(model, buckets)`` with its methods ``prepare(loss)`` and ``finish()``."""
    models = [Network(10 * case["seed"] + number, branches=4, types=BOTH) for number in range(2)]
    wrapped, found = [FindingUnused(model, _buckets(model, case["buckets"])) for model in models], {}
    for number, used in enumerate(STEPS):
        model, ddp = models[number % 2], wrapped[number % 2]
        buckets = _buckets(model, case["buckets"])
        model.gates[1] = 0.0  # branch 1 is used, and its gradients are zero
        about = f"in step {number + 1}, with the branches {used[: dist.get_world_size()]}"
        fault = "Ranks have used other parts, and yet all of them start bucket 0, then bucket 1, …, each one whole"
        with explained(fault):
            found |= model.step(about, ddp.finish, number, prepare=ddp.prepare, used=used)
        travelled, others = _sorted(buckets, model.calls)
        fault = "the all-reduces are not the buckets in their order, each as one tensor, zeros for what is unused"
        told, right = [call["bytes"] for call in model.calls], [sum(p.nbytes for p in bucket) for bucket in buckets]
        refuse(len(travelled) < len(buckets) or len(others) > 1, fault, measured=told, expected=right)
        hidden(model.calls, model.ready, travelled)
        flags(others, sum(map(len, buckets)))
        # (What lacks nothing before backward goes in prepare() or in the first hook.)
        label = f"{about}, the gradients that are ready when each bucket starts"
        found[label] = [max(call["ready"], 1) for call in travelled]
    return found


def _buckets(model: nn.Module, order: str) -> list[list[nn.Parameter]]:
    """One for each layer, the last layers first, or one for each branch first of all."""
    layers: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            layers.setdefault(".".join(name.split(".")[: 1 + name.startswith("branches")]), []).append(parameter)
    names = sorted(reversed(layers), key=lambda name: order == "branches first" and not name.startswith("branches"))
    return [layers[name] for name in names]


def _sorted(buckets: Sequence[Any], calls: Sequence[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """All-reduces that are the buckets, which may have room for a flag for each parameter, and the others."""
    travelled, others = [], []
    for call in calls:
        bucket = buckets[len(travelled)] if len(travelled) < len(buckets) else []
        room = call["bytes"] - sum(p.nbytes for p in bucket)
        fits = bucket and 0 <= room <= 8 * len(bucket) and call["dtype"] == str(bucket[0].dtype)[6:]
        (travelled if fits else others).append(call)
    return travelled, others
