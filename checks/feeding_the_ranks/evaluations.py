"""Exercise 2: the class ``EvaluationSampler(dataset, world_size, rank)``, and ``accuracy(correct, seen)``."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.feeding_the_ranks import dealing

COUNT_BYTES = 16  # two numbers
EXACT = ("int64", "uint64", "float64")  # they have room for billions
PRECISION = 2.0**-21  # of a division in float32, with its operands' rounding; counts that are wrong are further off


# --- the sampler


def draw(rng: random.Random) -> list[Case]:
    found = dealing.cases(rng, (4, 3, 1, 2, 5)) + dealing.cases(rng, (rng.choice((2, 3)),), ranks=2)[:1]
    return [case | {"seed": rng.getrandbits(30)} for case in found]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    Sampler, length, size = watch.answers["EvaluationSampler"].function, case["samples"], case["world size"]
    data, more = dealing.Numbered(length), dealing.Numbered(length + 3)
    with watch.step("EvaluationSampler", dataset=data):
        samplers = [Sampler(data, size, rank) for rank in range(size)]
        other = Sampler(more, size + 1, size)  # at the same time
        facts["shares"] = dealing.dealt(samplers)
        dealing.dealt([other])
        for sampler in samplers:
            next(iter(sampler), None)  # somebody stops in the middle, and begins again
        facts["lengths"] = [len(sampler) for sampler in samplers]
        facts["beside"] = dealing.beside(samplers[0])
        facts["again"] = dealing.dealt(samplers)
        facts["new"] = dealing.dealt([Sampler(data, size, rank) for rank in range(size)])
    facts["kinds"] = dealing.kinds([facts["shares"]])


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first thing that is not as it has to be; others may follow from it."""
    found = world[0]
    broken = dealing.judge_indices(case, [found["shares"]], found["kinds"]) or _dealt(case, found)
    if not broken and any(facts["shares"] != found["shares"] for facts in world):
        words = "gives other indices in another process: the rank is the argument `rank`"
        broken = Broken("value:process", f"the same sampler {words}")
    if broken:
        yield broken


def _dealt(case: Case, facts: Facts) -> Broken | None:
    shares, length, size = facts["shares"], case["samples"], case["world size"]
    sizes, counts = [len(share) for share in shares], dealing.counted(shares)
    twice = sum(count > 1 for count in counts.values())
    missing = sum(not counts[index] for index in range(length))
    if size > 1 and length > 1 and sizes == [length] * size:
        return Broken("value:all", "every rank evaluates the whole data set: that is right, and takes N times the work")
    if twice:
        words = "samples are evaluated more than once and weigh more than the others: no padding here"
        return Broken("value:twice", words, f"{twice} of {length} more than once", "none")
    if missing:
        return Broken("value:missing", "samples are never evaluated", f"{missing} of {length} are missing", "none")
    if max(sizes) - min(sizes) > 1:
        words = "the shares are not even: they may differ by one sample, and the largest sets the pace"
        return Broken("value:even", words, sizes)
    if facts["lengths"] != sizes:
        words = "len(sampler) is not the number of indices of this rank"
        return Broken("value:length", words, facts["lengths"], sizes)
    if not facts["again"] == facts["new"] == shares:
        return Broken("value:again", "the second evaluation gets other indices than the first: __iter__ begins anew")
    if facts["beside"] != [shares[0]] * 2:
        return Broken("value:beside", dealing.BESIDE)
    if any(share != sorted(share) for share in shares):
        return Broken("value:order", "an evaluation needs no shuffling: let the indices of each rank rise")
    return None


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    return {"data sets dealt out": len(played), "samples evaluated twice": 0, "shares differ by": "at most 1"}


SAMPLER = Contract(
    name="feeding_the_ranks.evaluation",
    rules={"EvaluationSampler": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("around:*random numbers", "an evaluation needs no shuffling: let the indices of each rank rise. {}"),
        ("value:*", "{}"),
    ),
    figures=figures,
)


# --- the accuracy


def draw_counts(rng: random.Random) -> list[Case]:
    cases: list[Case] = [_counts([(8, 10), (1, 10), (3, 4)])]
    for ranks in (3, 2, 1, rng.choice((4, 5))):
        largest = [9, 300, 70_000, 6 * 10**9]  # beyond what a byte, two, four have room for
        for most in [9, *rng.sample(largest, 2)] if ranks != 3 else largest:
            seen = [rng.randint(most // 2 + 1, most) for _ in range(ranks)]
            if ranks > 1 and rng.random() < 0.5:
                seen[rng.randrange(ranks)] = 0
            cases.append(_counts([(rng.randint(one // 3, one), one) for one in seen]))
        cases.append(
            _counts([(one, one) for one in seen]) if rng.random() < 0.5 else _counts([(0, one) for one in seen])
        )
    return [case | {"seed": rng.getrandbits(30)} for case in cases]


def _counts(counts: list[tuple[int, int]]) -> Case:
    shown = ", ".join(f"{correct} of {seen}" for correct, seen in counts)
    return {"ranks": len(counts), "right": shown, "counts": counts}


def scene_counts(case: Case, watch: Any, facts: Facts) -> None:
    import torch.distributed as dist

    correct, seen = case["counts"][dist.get_rank()]
    facts["result"] = watch.call("accuracy", correct=correct, seen=seen)
    facts["kind"] = "float" if isinstance(facts["result"], float) else type(facts["result"]).__name__
    calls = watch.records[-1]["calls"]
    facts["calls"] = [[call["name"], call["bytes"], call["dtype"]] for call in calls]


def judge_counts(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    counts = case["counts"]
    right = sum(correct for correct, _ in counts) / sum(seen for _, seen in counts)
    results = [facts["result"] for facts in world]
    figures = [
        one if isinstance(one, float | int) else facts["kind"] for one, facts in zip(results, world, strict=True)
    ]
    shown = ", ".join(f"{one:.9g}" if isinstance(one, float) else str(one) for one in figures)
    broken = _result(counts, world, right)
    if broken:
        yield Broken(*broken, shown, f"{right:.9g} on every rank")
        return
    for rank, facts in enumerate(world):
        handed_in = sum(nbytes for _, nbytes, _ in facts["calls"])
        if len(facts["calls"]) > 1 or handed_in > COUNT_BYTES:
            words = "two numbers need one collective: put them into one tensor"
            measured = f"{len(facts['calls'])} collectives, {handed_in} bytes"
            yield Broken("value:talk", words, measured, f"1 collective of at most {COUNT_BYTES} bytes", rank=rank)
            return
        if types := _too_small(facts):
            other = 2**24 + 1 if "float" in types[0] else 3 * 10**9
            words = f"the counts travel as {types[0]}, which has no room for all counts up to billions: a count of "
            yield Broken("value:type", f"{words}{other:,} is another one there. Take int64", rank=rank)
            return


def _too_small(facts: Facts) -> list[str]:
    """Types of counts without room for billions. (Who gathers all 16 bytes may call them what he likes.)"""
    found = facts["calls"]
    return [kind for name, size, kind in found if kind not in EXACT and (name, size) != ("all_gather", COUNT_BYTES)]


def _result(counts: Sequence[tuple[int, int]], world: Sequence[Facts], right: float) -> tuple[str, str] | None:
    results = [facts["result"] for facts in world]
    if any(facts["kind"] != "float" for facts in world):
        return "value:kind", "accuracy returns a plain float on every rank: .item() makes one of a tensor"
    good = [abs(result - right) <= PRECISION * max(right, 1e-30) for result in results]
    if all(good):
        return None
    if any(good):
        return "value:some", "not all ranks have the accuracy: every rank needs it"
    own = [correct / seen for correct, seen in counts if seen]
    if any(abs(results[0] - sum(own) / count) < 1e-6 for count in {len(own), len(counts)}) and len(counts) > 1:
        words = (
            "this is the mean of the ranks' accuracies: a rank with fewer samples then weighs as much as the others."
        )
        return "value:mean", f"{words} Add up the counts first, and divide then"
    if len(counts) > 1 and any(abs(results[0] - one) < 1e-6 for one in own):
        return "value:own", "this is the rank's own accuracy: ask the others"
    if types := [dtype for facts in world for dtype in _too_small(facts)]:
        return "value:type", f"the accuracy is not right: {types[0]} has no room for counts like these. Take int64"
    return "value:accuracy", "the accuracy of all samples is not right"


def figures_counts(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    largest = max(seen for case, _ in played for _, seen in case["counts"])
    return {"accuracy": f"1 collective, up to {largest:,} samples a rank"}


ACCURACY = Contract(
    name="feeding_the_ranks.accuracy",
    rules={
        "accuracy": Rules(
            wire=lambda case, rank, facts: {
                name: Amount(calls=1, bytes=COUNT_BYTES, least=0) for name in ("all_reduce", "all_gather")
            }
        )
    },
    draw=draw_counts,
    scene=scene_counts,
    judge=judge_counts,
    mistakes=(
        ("wire:disagree", "{}. Every rank asks, also one that has seen nothing"),
        ("wire:other *", "{}"),
        ("wire:unwaited *", "{}"),
        ("value:*", "{}"),
        ("wire:more *", "two numbers need one collective of at most 16 bytes: put them into one tensor. {}"),
        ("wire:pieces *", "two numbers need one collective of at most 16 bytes: put them into one tensor. {}"),
    ),
    figures=figures_counts,
)
