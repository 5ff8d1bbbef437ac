"""Exercise 6: the class ``FindingUnused(model, buckets)`` with ``prepare(loss)`` and ``finish()``.

Buckets go while backward computes, though parts are unused: these are found in the graph, so that no bucket waits for
them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts
from checks.ddp_and_bucketing import bucket_plans as plans
from checks.ddp_and_bucketing import bucketing, gradients, overlapping
from checks.ddp_and_bucketing.bucket_plans import Bucket, Weight
from checks.ddp_and_bucketing.unused_parameters import FLAG, STEPS, judge_flags, what_is_used

MODELS = [step % 2 for step in range(STEPS)]  # in which model each step trains


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks in (3, rng.choice((2, 4))):
        for order in (
            ("as in the model", "branches first") if ranks == 3 else (rng.choice(("mixed", "branches first")),)
        ):
            case = {"ranks": ranks, "type": bucketing.TYPES, "buckets": order, "seed": rng.getrandbits(30)}
            case |= {"models": MODELS, "used": what_is_used(rng, ranks)}
            cases.append(case | {"plans": [_plan(case, number, rng) for number in range(2)]})
    return cases


def _plan(case: Case, number: int, rng: random.Random) -> list[list[str]]:
    """The buckets of a model, as names: the first one of a rank that uses no branch may be ready before backward."""
    weights = bucketing.weights_of(bucketing.model_of(case, number))
    cap = sum(weight.bytes for weight in weights if weight.trainable) // rng.choice((4, 7, 12))
    buckets = [[weight.name for weight in bucket] for bucket in plans.buckets_of(weights, cap)]
    if case["buckets"] == "mixed":
        rng.shuffle(buckets)
    elif case["buckets"] == "branches first":
        buckets.sort(key=lambda names: not all(name.startswith("branches") for name in names))
    return buckets


def scene(case: Case, watch: Any, facts: Facts) -> None:
    models = [overlapping.make(case, number, bucketing.BRANCHES) for number in range(2)]
    facts["weights"] = [[tuple(weight) for weight in bucketing.weights_of(model)] for model in models]

    def wrap(number: int) -> Any:
        named = dict(models[number].named_parameters())
        buckets = [[named[name] for name in names] for names in case["plans"][number]]
        return watch.call("FindingUnused", model=models[number], buckets=buckets)

    overlapping.train(case, watch, facts, models, wrap)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for step, number in enumerate(MODELS):
        call = len(set(MODELS)) + step
        for rank, facts in enumerate(world):
            weights = {one[0]: Weight(*one) for one in facts["weights"][number]}
            buckets = [[weights[name] for name in names] for names in case["plans"][number]]
            found, where = facts["steps"][step], {"rank": rank, "call": call}
            yield from _judge_launches(buckets, found["launches"], where)
            if found["backwards"] != 1:
                words = "backward runs twice through the graph, once to see what is used: only walk through its nodes"
                yield Broken("wire:1 twice", words, f"{found['backwards']} times", 1, **where)
        yield from gradients.judge_means(world, step, call)
        yield from gradients.judge_others(world, step, call)
        yield from judge_flags(world[0], number, world[0]["steps"][step]["launches"]["calls"], call)
    yield from overlapping.judge_kept(world)


def _judge_launches(buckets: list[Bucket], found: dict[str, Any], where: dict[str, Any]) -> Iterator[Broken]:
    """All buckets in their order and each at its moment; one all-reduce of flags may be anywhere."""
    calls, moments = found["calls"], plans.due(buckets, found["ready"])
    ways = [(calls, []), *((calls[:n] + calls[n + 1 :], [one]) for n, one in enumerate(calls))]
    fitting = [(travelled, flags) for travelled, flags in ways if _fit(buckets, travelled)]
    if not fitting:
        words = "what is launched are not the buckets in their order, each as one tensor, zeros for what is unused"
        got = [(one["bytes"], one["dtype"]) for one in calls]
        yield Broken(
            "wire:0 buckets", words, bucketing.in_words(got), bucketing.in_words(plans.launches(buckets)), **where
        )
        fitting = [(calls, [])]
    yield from min((list(_judge_times(buckets, moments, found, *one, where)) for one in fitting), key=len)


def _fit(buckets: list[Bucket], calls: list[dict[str, Any]]) -> bool:
    """Whether these are the buckets; a bucket may have room for its flags."""
    return len(calls) == len(buckets) and all(
        one["dtype"] == dtype and nbytes <= one["bytes"] <= nbytes + FLAG * len(bucket)
        for one, bucket, (nbytes, dtype) in zip(calls, buckets, plans.launches(buckets), strict=True)
    )


def _judge_times(
    buckets: list[Bucket],
    moments: list[int],
    found: dict[str, Any],
    travelled: list[dict[str, Any]],
    flags: list[dict[str, Any]],
    where: dict[str, Any],
) -> Iterator[Broken]:
    last, (rank, call) = len(found["ready"]), where.values()
    yield from overlapping.judge_overlap(found | {"calls": travelled}, moments[0], rank, call)
    yield from overlapping.judge_overlap(found | {"calls": flags}, last, rank, call)
    if len(travelled) != len(moments):
        return
    for number, (one, moment) in enumerate(zip(travelled, moments, strict=True)):
        # (What is ready before backward may go in its first hook; a hook of a tensor runs just before it is ready.)
        if moment - 1 <= one["ready"] <= max(moment, 1):
            continue
        missing = [w.name for w in buckets[number] if w.name in found["ready"][one["ready"] :]]
        if one["ready"] < moment:
            why = (
                f"the gradient of `{missing[0]}` is not there yet" if missing else "an earlier bucket has not gone yet"
            )
            words = f"bucket {number} is launched too early: {why}"
        else:
            words = (
                f"bucket {number} is launched too late: a bucket goes as soon as the gradients that it will get are "
            )
            words += (
                "there and all buckets before it have gone. What this backward never reaches is nothing to wait for"
            )
        yield Broken("wire:3 moment", words, f"{one['ready']} of {last} gradients ready", moment, **where)
        return


def amount(facts: Facts, number: int) -> Amount:
    """Every bucket travels whole, and at most one tensor of flags."""
    sizes = [nbytes for _, nbytes, _ in facts["sizes"][number]["trainable"]]
    return Amount(len(sizes) + 1, sum(sizes) + FLAG * len(sizes), least=sum(sizes))


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    steps = [(world, step) for _, world in played for step in range(STEPS)]
    firsts = [facts["steps"][step]["launches"] for world, step in steps for facts in world]
    before = sum(one["calls"][0]["ready"] < len(one["ready"]) for one in firsts)
    return {
        "models": gradients.models_in(played, 2),
        "steps": len(steps),
        "first launch before backward ends": f"{before} of {len(firsts)} times",
        "parameters that nobody used": "keep None",
    }


CONTRACT = Contract(
    name="ddp_and_bucketing.unused_overlap",
    rules={"FindingUnused": overlapping.CONSTRUCTOR, **overlapping.steps(amount)},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("wire:1 *", "{}"),
        (
            "wire:disagree",
            "{}. Ranks have used other parts, and yet all of them launch bucket 0, then bucket 1, …, each one whole",
        ),
        ("state:*", "{}"),
        ("wire:0 *", "{}"),
        *gradients.MISTAKES,
        ("value:lost", "{}"),
        ("wire:3 *", "{}"),
        ("value:flags", "{}"),
        ("wire:more *", "{}"),
        ("wire:4 *", "{}"),
    ),
    refused=gradients.REFUSED,
    figures=figures,
)
