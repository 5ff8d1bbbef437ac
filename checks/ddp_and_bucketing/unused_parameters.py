"""Exercise 5: ``average_used(model)``, for models of which each rank uses another part."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.ddp_and_bucketing import gradients

BRANCHES, MANY, STEPS = 4, 24, 5  # with many branches a model has more parameters than a number has bits
FLAG = 8  # bytes for each trainable parameter, at most


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks in (3, 2, rng.choice((4, 5))):
        for _ in range(2 if ranks == 3 else 1):
            used = what_is_used(rng, ranks)
            kind = rng.choice(("float64", "float32"))
            branches = BRANCHES if ranks != 2 else MANY
            case = {"ranks": ranks, "type": kind, "branches": branches, "used": used}
            cases.append(case | {"seed": rng.getrandbits(30)})
    return cases


def what_is_used(rng: random.Random, ranks: int) -> list[list[list[int]]]:
    """Branches, by step and rank."""
    used = [[_some(rng) for _ in range(ranks)] for _ in range(STEPS - 1)]
    # One that rank 0 does not use and another does, who uses all of them; all the same, and nobody anything.
    used[rng.randrange(STEPS - 2)] = rng.choice(([[]] * ranks, [[1]] * ranks))
    used[-1] = [[], *([rng.randrange(BRANCHES)] for _ in range(ranks - 1))]
    used[-1][-1] = [*range(BRANCHES)]
    return [*used, used[-2]]  # at last as in the step before of this model: who keeps more now keeps what is over


def _some(rng: random.Random) -> list[int]:
    return rng.sample(range(BRANCHES - 1), rng.choice((0, 1, 1, 2)))


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch.distributed as dist

    from checks.contracts import scenery, snapshot

    rank, kind = dist.get_rank(), case["type"]
    models = [scenery.model(case["seed"] + number, branches=case["branches"], types=kind) for number in range(2)]
    facts |= {"sizes": [gradients.sizes(model) for model in models], "steps": []}
    optimizers = [scenery.Momentum(list(model.parameters())) for model in models]
    for step, used in enumerate(case["used"]):
        number = step % 2
        model = models[number]
        model.order = used[rank]
        model.gates[1] = 0.0  # branch 1 is used, and its gradients are zero
        for parameter in model.parameters():
            parameter.grad = None
        if rank == 0 and step == STEPS - 1:
            scenery.goes_wrong(model, now=[True])
        scenery.loss(model, 1000 * case["seed"] + 10 * step + rank).backward()
        own = snapshot.gradients(model)
        with watch.step(f"average_used {'AB'[number]}", model=model) as record:
            record["of"] += f" {used[rank]}"
            watch.answers["average_used"](model)
        others = snapshot.gradients(models[1 - number]) if step else {}
        facts["steps"].append(
            {"own": own, "got": snapshot.gradients(model), "others": others, "calls": record["calls"]}
        )
        optimizers[number].step()


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for step in range(len(world[0]["steps"])):
        yield from gradients.judge_means(world, step, call=step)
        yield from gradients.judge_others(world, step, call=step)
        yield from judge_flags(world[0], step % 2, world[0]["steps"][step]["calls"], call=step)


def judge_flags(facts: Facts, model: int, calls: Sequence[dict[str, Any]], call: int) -> Iterator[Broken]:
    trainable = len(facts["sizes"][model]["trainable"])
    flags = max((one["bytes"] for one in calls if "float" not in one["dtype"]), default=0)
    if flags > FLAG * trainable:
        words = f"the flags take more than {FLAG} bytes for each trainable parameter; frozen ones need none"
        yield Broken("value:flags", words, f"{flags} bytes", f"at most {FLAG} × {trainable} bytes", call=call)
    if any(one["operation"] == "SUM" and one["dtype"] in ("uint8", "int8", "bool") for one in calls):
        words = "flags are added up in one byte each (gloo adds bools so too): with 256 ranks the sum is 0 again. "
        words += "Take a wider type, or their maximum"
        yield Broken("value:overflow", words, call=call)


def amount(facts: Facts, number: int) -> Amount:
    """What has been used travels once, at most with zeros for the rest, and with one tensor of flags."""
    sizes = [nbytes for _, nbytes, _ in facts["sizes"][number]["trainable"]]
    return Amount(len(sizes) + 1, sum(sizes) + FLAG * len(sizes), least=1)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    return {
        "steps": sum(len(world[0]["steps"]) for _, world in played),
        "models": gradients.models_in(played, 2),
        "parameters that nobody used": "keep None",
    }


_FLAGS = "one small all_reduce is enough to learn what others have used, put all flags into one tensor"
CONTRACT = Contract(
    name="ddp_and_bucketing.unused",
    rules={
        f"average_used {'AB'[number]}": Rules(
            changes=(*gradients.GRADIENTS, "model.*.grad"),
            wire=gradients.by_model(amount, number),
        )
        for number in (0, 1)
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        (
            "wire:disagree",
            "{}. Some ranks have no gradient for what others have used: first learn in one all_reduce of flags what "
            "anybody has used",
        ),
        *gradients.MISTAKES,
        ("value:lost", "{}"),
        ("value:flags", "{}"),
        ("wire:more *", f"{{}}: {_FLAGS}"),
        ("wire:pieces *", f"{{}}: {_FLAGS}"),
    ),
    refused=gradients.REFUSED,
    figures=figures,
)
