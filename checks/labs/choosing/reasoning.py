"""Check of ``reasons``: what a plan costs in memory, traffic, bubble and time, before anything has run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise
from checks.engine.refusing import named
from checks.labs.choosing.simulated import BATCH, GPUS
from lessons.training.layouts import Plan
from utils.training.models import LLAMA_70B

OFFICIAL = Reference("choosing", "reasons", {
    "a context parallel rank has the same parameters as its neighbours, so FSDP shards over `context` as well":
        {"states = 16 * PARAMETERS / plan.gpus * plan.replicate":
         "states = 16 * PARAMETERS / (plan.shard * plan.tensor * plan.pipeline)"},
    "replicas do not share the states: each has all of them": {" * plan.replicate / 2**30": " / 2**30"},
    "the states are in GB: a GiB has 2³⁰ bytes": {"/ 2**30": "/ 1e9"},
    "gradients are reduced in fp32: 4 bytes for each": {"2 + 2 + 4": "2 + 2 + 2", "2 + 4)": "2 + 2)"},
    "without a pipeline a parameter is gathered twice for each micro-batch, for forward and for backward":
        {"m * (2 + 2 + 4)": "m * (2 + 4)"},
    "without a pipeline parameters and gradients travel for each micro-batch": {"m * (2 + 2 + 4)": "(2 + 2 + 4)"},
    "with a pipeline parameters and gradients travel once in a step, not for each micro-batch":
        {"else (2 + 4)": "else m * (2 + 4)"},
    "with a pipeline parameters are gathered once, as they stay until the end of the step":
        {"else (2 + 4)": "else (2 + 2 + 4)"},
    "`tensor` FSDP groups run through each node, and each gathers its own part of a matrix":
        {"PARAMETERS / plan.pipeline *": "PARAMETERS / plan.pipeline / plan.tensor *"},
    "a stage's GPUs gather that stage's parameters, not the whole model's":
        {"PARAMETERS / plan.pipeline *": "PARAMETERS *"},
    "what a node has itself need not come in: (n − 1)/n of it does, of n nodes":
        {" * (nodes - 1) / nodes": " * (nodes > 1)"},
    "count nodes, not GPUs: what comes into a node is handed on inside it":
        {"(nodes - 1) / nodes": "(nodes > 1) * (plan.shard * plan.context - 1) / (plan.shard * plan.context)"},
    "a group that stays inside a node needs no NIC": {
        "max(1, plan.shard * plan.context * plan.tensor / 8)": "plan.shard * plan.context"},
    "neighbours of an FSDP group are `tensor` GPUs apart, so it reaches over more nodes":
        {"plan.context * plan.tensor / 8": "plan.context / 8"},
    "each of a node's eight GPUs is counted as if all came in for it alone: a parameter comes into a node once":
        {"nodes / 1e9": "nodes / 1e9 * 8"},
    "it is (p − 1) / m, of the time that is computed; (p − 1) / (m + p − 1) is the share of the whole step":
        {"(plan.pipeline - 1) / m": "(plan.pipeline - 1) / (m + plan.pipeline - 1)"},
    "m is how many micro-batches one data parallel rank has":
        {"m = plan.micro_batches(64)": "m = 64 // plan.micro"},
    "what is computed again is left out": {" * AGAIN[plan.saved]": ""},
    "the bubble is left out of the seconds": {" * (1 + bubble)": ""},
    "NICs and products work at the same time: the larger of both, not the sum":
        {"max(compute, traffic / nics)": "compute + traffic / nics"},
    "the seconds are those of the products alone": {"max(compute, traffic / nics)": "compute"},
    "a forward pass is 2 operations for each parameter and token; with backward it is 6":
        {"6 * PARAMETERS": "2 * PARAMETERS"},
    "all GPUs work together: divide by their number": {" / (64 * 989.5e12)": " / 989.5e12"},
})  # fmt: skip
LABELS = ("GiB of states", "GB into a node", "bubble", "seconds at least")
FIRST = Plan(shard=64), Plan(shard=8, tensor=8, micro=8), Plan(shard=4, tensor=8, pipeline=2)


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """The lab's three plans first, then any that can run."""
    nics = 50 if number % 2 else 12.5
    if number < len(FIRST):
        return {"plan": FIRST[number], "nics": nics}
    while True:
        context, tensor, pipeline, micro = (2 ** rng.randint(0, 3) for _ in range(4))
        replicate = 1 if number < 5 else rng.choice((1, 1, 2))
        shard = GPUS // (replicate * context * tensor * pipeline)
        plan = Plan(replicate, shard, context, tensor, pipeline, micro, rng.choice(("full", "selective", "none")))
        if shard and not plan.wrong(LLAMA_70B, GPUS, BATCH):
            return {"plan": plan, "nics": nics}


@exercise(OFFICIAL, draw, title="The reasons, as numbers", difficulty=2, minutes=25, timeout=30)
def reasons(case: dict[str, Any], reasons: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``reasons(plan, nics)``."""
    return named(reasons(case["plan"], case["nics"]), "four", LABELS)
