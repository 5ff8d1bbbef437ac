"""Exercise 3: the class ``Bucketed(model, cap)`` with ``finish()``: buckets, in one order on all ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts
from checks.ddp_and_bucketing import bucket_plans as plans
from checks.ddp_and_bucketing import gradients, overlapping
from checks.ddp_and_bucketing.bucket_plans import Weight

BRANCHES = 4
TYPES = "float64 and float32"
_ORDERS = ("the same", "other on odd ranks")


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks in (2, rng.choice((3, 4))):
        for order in _ORDERS if ranks == 2 else rng.sample(_ORDERS, 1):
            case = {"ranks": ranks, "type": TYPES, "order": order, "seed": rng.getrandbits(30)}
            cases.append(case | {"caps": _caps(case, rng)})
    return cases


def _caps(case: Case, rng: random.Random) -> list[int]:
    """For both models, caps with which usual mistakes show: also one that a bucket meets exactly, 1, and a huge one."""
    caps = []
    for number in range(2):
        weights = weights_of(model_of(case, number))
        trained = [weight.bytes for weight in reversed(weights) if weight.trainable]
        candidates = [sum(trained[:count]) for count in range(1, len(trained))]
        candidates += [weight.bytes for weight in weights] + [one + 4 * rng.randint(1, 20) for one in trained]
        rng.shuffle(candidates)
        telling = plans.telling_caps(weights, candidates)
        if case["order"] == "the same":
            caps.append(telling[min(number, len(telling) - 1)])
        else:  # many buckets, so that they are full in another order on another rank
            caps.append(rng.choice((1, 4, 8, 12, 16)) if number else rng.choice((*telling, 10**6)))
    return caps


def model_of(case: Case, number: int) -> Any:
    from checks.contracts import scenery

    return scenery.model(case["seed"] + number, branches=BRANCHES, types=TYPES)


def weights_of(model: Any) -> list[Weight]:
    """Every parameter once, in the order of ``model.parameters()``."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    found = [(names[id(p)], p) for p in model.parameters()]
    return [Weight(n[0], p.nbytes, str(p.dtype).removeprefix("torch."), len(n), p.requires_grad) for n, p in found]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    models = [overlapping.make(case, number, BRANCHES) for number in range(2)]
    facts["weights"] = [[tuple(weight) for weight in weights_of(model)] for model in models]
    wrap = lambda number: watch.call("Bucketed", model=models[number], cap=case["caps"][number])  # noqa: E731
    overlapping.train(case, watch, facts, models, wrap)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for step, number in enumerate(overlapping.ORDER_OF_MODELS):
        call = len(set(overlapping.ORDER_OF_MODELS)) + step
        cap = case["caps"][number]
        for rank, facts in enumerate(world):
            weights = [Weight(*one) for one in facts["weights"][number]]
            found, where = facts["steps"][step]["launches"], {"rank": rank, "call": call}
            buckets = plans.buckets_of(weights, cap)
            moments = plans.due(buckets, found["ready"])
            got = [(one["bytes"], one["dtype"]) for one in found["calls"]]
            if got != plans.launches(buckets):
                words = f"with cap {cap:,}, {plans.why(weights, cap, found['ready'], got)}"
                yield Broken("wire:0 buckets", words, in_words(got), in_words(plans.launches(buckets)), **where)
            yield from overlapping.judge_overlap(found, moments[0], rank, call)
            if len(got) == len(moments):
                yield from _moments(buckets, moments, found, where)
        yield from gradients.judge_means(world, step, call)
        yield from gradients.judge_others(world, step, call)
    yield from overlapping.judge_kept(world)


def _moments(
    buckets: list[list[Weight]], moments: list[int], found: dict[str, Any], where: dict[str, Any]
) -> Iterator[Broken]:
    """Each bucket is launched at its moment."""
    for number, (one, moment) in enumerate(zip(found["calls"], moments, strict=True)):
        if one["ready"] == moment:
            continue
        lacking = [w.name for w in buckets[number] if found["ready"].index(w.name) >= one["ready"]]
        why = "a bucket goes as soon as its last gradient is ready and all buckets before it have gone"
        if one["ready"] < moment:
            why = (
                f"the gradient of `{lacking[0]}` is not there yet" if lacking else "an earlier bucket has not gone yet"
            )
        words = f"bucket {number} is launched too {'early' if one['ready'] < moment else 'late'}: {why}"
        yield Broken(
            "wire:3 moment", words, f"{one['ready']} of {len(found['ready'])} gradients ready", moment, **where
        )
        return


def in_words(launched: Sequence[tuple[int, str]]) -> str:
    return ", ".join(f"{nbytes:,} ({dtype})" for nbytes, dtype in launched[:6]) + (" …" if launched[6:] else "")


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    counts = {}
    for case, world in played:
        for step, number in enumerate(overlapping.ORDER_OF_MODELS[:2]):
            counts[case["caps"][number]] = len(world[0]["steps"][step]["launches"]["calls"])
    return {
        "models": gradients.models_in(played, 2),
        "all-reduces by cap": ", ".join(f"{cap:,} bytes: {count}" for cap, count in counts.items()),
        "ranks with another order": "launch in the same order",
    }


CONTRACT = Contract(
    name="ddp_and_bucketing.buckets",
    rules={"Bucketed": overlapping.CONSTRUCTOR, **overlapping.STEPS},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("wire:0 *", "{}"),
        ("wire:1 *", "{}"),
        (
            "wire:disagree",
            "{}. Gradients may be ready in another order on another rank: launch bucket 0, then bucket 1, …",
        ),
        *overlapping.MISTAKES,
        ("wire:3 *", "{}"),
    ),
    refused=gradients.REFUSED,
    figures=figures,
)
