"""Exercise 1: ``broadcast_state(model)`` at the start, ``average_gradients(model)`` in every step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.ddp_and_bucketing import gradients

STEPS = 2


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    both = ["float64", "float32"]
    for ranks, kind in ((3, both[0]), (3, both[1]), (2, rng.choice(both)), (rng.choice((4, 5)), rng.choice(both))):
        how = {"type": kind, "zero_grad": rng.choice(("to None", "to zero")), "grad mode": rng.choice(("on", "off"))}
        how["grad mode"] = "on" if len(cases) == 1 else how["grad mode"]
        how["gradients before"] = "yes" if not cases else rng.choice(("yes", "no"))
        how["broadcast before"] = "no" if cases else "another model of these sizes, and this one with other numbers"
        cases.append({"ranks": ranks, **how, "seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist

    from checks.contracts import scenery, snapshot

    rank, seed = dist.get_rank(), case["seed"]
    model = scenery.model(seed, numbers=seed + 1 + rank, branches=1 + seed % 3, types=case["type"])
    model.branches[0][0].register_buffer("seen", torch.tensor(seed + rank))  # deep inside, a number without dimensions
    if case["gradients before"] == "yes":  # which have to stay
        scenery.loss(model, seed).backward()
    facts["sizes"] = [gradients.sizes(model)]
    if case["broadcast before"] != "no":
        numbers = snapshot.copies(model)
        for one in (scenery.twin(model), model):
            watch.call("broadcast_state", model=one)
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                tensor.copy_(numbers[name])
    facts |= {"before": snapshot.copies(model), "steps": []}
    facts["buffers"] = [name for name, _ in model.named_buffers()]
    watch.call("broadcast_state", model=model)
    facts |= {"after": snapshot.copies(model), "calls before": len(watch.records)}
    parameters = list(model.parameters())
    optimizer = scenery.Momentum(parameters)
    for step in range(STEPS):
        for parameter in parameters:
            if parameter.grad is not None and step and case["zero_grad"] == "to zero":
                parameter.grad.zero_()
            else:
                parameter.grad = None
        model.gates[0] = float(rank != step % case["ranks"])  # gradients that are zero on one rank travel all the same
        if rank == 0 and step == STEPS - 1:
            scenery.goes_wrong(model, now=[True])
        scenery.loss(model, 1000 * seed + 10 * step + rank, rows=1 + seed % 4).backward()
        own = snapshot.gradients(model)
        with torch.set_grad_enabled(case["grad mode"] == "on"):
            watch.call("average_gradients", model=model)
        facts["steps"].append({"own": own, "got": snapshot.gradients(model)})
        optimizer.step()


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    import torch

    for rank, facts in enumerate(world):
        for name, right in world[0]["before"].items():
            if torch.equal(facts["after"][name], right):
                continue
            own = torch.equal(facts["after"][name], facts["before"][name])
            words = "is still its own" if own else "is neither its own nor rank 0's, bit by bit"
            kind = "buffer" if name in facts["buffers"] else "parameter"
            clause = f"value:{'own' if own else 'other'} {kind}"
            yield Broken(clause, f"after broadcast_state, the {kind} `{name}` {words}", rank=rank)
        for step in range(len(facts["steps"])) if rank == 0 else ():
            yield from gradients.judge_means(world, step, call=facts["calls before"] + step)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    sizes = [world[0]["sizes"][0] for _, world in played]
    return {
        "models": gradients.models_in(played),
        "broadcast at the start": f"{sum(sizes[0]['state']):,} bytes of the first",
        "all-reduced in each step": f"{sum(nbytes for _, nbytes, _ in sizes[0]['trainable']):,} bytes",
    }


CONTRACT = Contract(
    name="ddp_and_bucketing.average",
    rules={
        "broadcast_state": Rules(
            changes=("*.value",),
            keeps=("*.grad.value",),
            wire=lambda case, rank, facts: {
                "broadcast": Amount(len(facts["sizes"][0]["state"]), sum(facts["sizes"][0]["state"]), peer=0)
            },
            surplus=lambda facts: {gradients.TIED: facts["sizes"][0]["tied"]},
        ),
        "average_gradients": Rules(
            changes=gradients.GRADIENTS,
            wire=gradients.by_model(gradients.once, 0),
            surplus=gradients.surplus,
        ),
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *gradients.MISTAKES,
        ("wire:* travels twice*broadcast", "{}: parameters() has it once, state_dict() twice"),
        ("value:own buffer", "{}: parameters() holds no buffers, state_dict() not all of them, buffers() all"),
        ("value:own parameter", "{}: parameters() holds all of them, frozen ones too"),
    ),
    refused=gradients.REFUSED,
    figures=figures,
)
