"""Exercise 2: ``train_until(most, good, train_epoch, validate)`` ends on all ranks after the same epoch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.torchrun import talk
from checks.verdicts import Wrong

CALLS, BYTES = 2, 16  # in an epoch
Losses = list[list[tuple[float, int]]]  # of each epoch, of each rank: the sum, and the number of samples


def draw(rng: random.Random) -> list[Case]:
    """Losses that tell mistakes apart; each case ends in an epoch that each mistake takes for another one."""
    cases = []
    for ranks in talk.worlds(rng):
        for words, kind in KINDS.items():
            if ranks == 1 and kind in (_one_first, _large_share, _no_samples):
                continue
            good = rng.choice((0.5, 0.25, 0.75, 2.0))
            losses = kind(rng, ranks, good)
            case = {"ranks": ranks, "losses": words, "good": good, "most": len(losses)}
            cases.append(case | {"per epoch": losses, "seed": rng.getrandbits(30)})
    return cases


def _epoch(counts: Sequence[int], means: Sequence[float]) -> list[tuple[float, int]]:
    return [(float(mean * count), count) for mean, count in zip(means, counts, strict=True)]


def _falls(rng: random.Random, ranks: int, good: float) -> Losses:
    counts = [rng.randint(1, 300) for _ in range(ranks)]
    return [_epoch(counts, [good * factor] * ranks) for factor in (1.2, 40, -2, 0.5, 0.1)]


def _never(rng: random.Random, ranks: int, good: float) -> Losses:
    counts = [rng.randint(1, 30) for _ in range(ranks)]
    return [_epoch(counts, [factor * good] * ranks) for factor in (math.nan, *[1.1] * rng.randint(1, 4))]


def _at_once(rng: random.Random, ranks: int, good: float) -> Losses:
    return [_epoch([5] * ranks, [good * 0.9] * ranks)] * 3


def _just_not(rng: random.Random, ranks: int, good: float) -> Losses:
    scale = 2 ** rng.randint(0, 5)  # all numbers of samples are such powers, so that nothing is rounded
    counts = [scale * share for share in {1: [1], 2: [1, 1], 3: [1, 2, 1], 4: [1, 1, 1, 1], 5: [2, 1, 2, 1, 2]}[ranks]]
    return [_epoch(counts, [good * factor] * ranks) for factor in (1.5, 1.0, 0.9999, 0.9, 0.5)]


def _one_first(rng: random.Random, ranks: int, good: float) -> Losses:
    first, last = rng.sample(range(ranks), 2)
    factors = [(0.5, 3), (0.5, 1.9), (0.5, 1.2), (0.4, 1.1), (0.4, 0.9)]
    means = [
        [a * good if rank == first else b * good if rank == last else 1.4 * good for rank in range(ranks)]
        for a, b in factors[:2]
    ] + [
        [a * good if rank == first else b * good if rank == last else 0.9 * good for rank in range(ranks)]
        for a, b in factors[2:]
    ]
    return [_epoch([10] * ranks, one) for one in means]


def _large_share(rng: random.Random, ranks: int, good: float) -> Losses:
    one = rng.randrange(1, ranks)
    counts = [rng.randint(400, 3000) if rank == one else rng.randint(1, 2) for rank in range(ranks)]
    bad, fine = 1.4 * good, 0.2 * good
    worse = [bad if rank == one else fine for rank in range(ranks)]
    better = [0.9 * good if rank == one else 4 * good for rank in range(ranks)]
    return [_epoch(counts, means) for means in (worse, better, worse, worse)]


def _no_samples(rng: random.Random, ranks: int, good: float) -> Losses:
    one = rng.randrange(ranks)
    counts = [0 if rank == one else rng.randint(1, 40) for rank in range(ranks)]
    return [_epoch(counts, [factor * good] * ranks) for factor in (2, 1.05, 0.95, 0.5)]


KINDS: dict[str, Callable[[random.Random, int, float], Losses]] = {
    "all ranks are good in the third epoch": _falls,
    "one rank is good first, another one last": _one_first,
    "one rank has most of the samples": _large_share,
    "one rank has no samples": _no_samples,
    "nan, and then never good enough": _never,
    "good at once": _at_once,
    "exactly `good` in the second epoch, which is not below, and a little better in the third": _just_not,
}


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist

    rank, log, wire = dist.get_rank(), [], watch.wire
    facts["log"] = log

    def train_epoch() -> None:
        log.append("train")
        wire.phase = talk.THE_PROGRAMS
        dist.all_reduce(torch.ones(3))  # the gradients
        wire.phase = ""

    def validate() -> tuple[float, int]:
        log.append("validate")
        if not 0 < (epoch := log.count("train")) <= case["most"]:
            raise Wrong("validate() is for after an epoch, and there are at most `most`", measured=f"{epoch} trained")
        total, count = case["per epoch"][epoch - 1][rank]
        return total, count

    most, good = case["most"], case["good"]
    returned = watch.call("train_until", most=most, good=good, train_epoch=train_epoch, validate=validate)
    is_number = isinstance(returned, Real) or (isinstance(returned, torch.Tensor) and returned.numel() == 1)
    facts["returned"] = float(returned) if is_number and not isinstance(returned, bool) else f"{returned}"[:40]
    facts["calls"] = talk.calls_of(watch.records[-1])
    if case["losses"] != "good at once":
        return

    def fails() -> tuple[float, int]:
        raise OSError("the validation data cannot be read")

    caught = watch.attempt("train_until", most=most, good=good, train_epoch=_nothing, validate=fails)
    facts["swallowed"] = caught is None or "ZeroDivisionError" in caught["kinds"]  # (of no samples at all)


def _nothing() -> None:
    """An epoch of which nobody takes notes."""


def mean(epoch: Sequence[tuple[float, int]]) -> float:
    return sum(total for total, _ in epoch) / sum(count for _, count in epoch)


def epochs_if(case: Case, decides: Callable[[Any, float], bool]) -> int:
    """So many are trained if that decides."""
    return next((n + 1 for n, epoch in enumerate(case["per epoch"]) if decides(epoch, case["good"])), case["most"])


def _means(epoch: Sequence[tuple[float, int]]) -> list[float]:
    return [total / count if count else 0.0 for total, count in epoch]


MISTAKES: dict[str, Callable[[Any, float], bool]] = {
    "it never stops early": lambda epoch, good: False,
    "it stops as soon as the loss of one rank is good enough": lambda epoch, good: min(_means(epoch)) < good,
    "it stops only when the loss of each single rank is good enough": lambda epoch, good: max(_means(epoch)) < good,
    "it takes the mean of the ranks' means, so that a rank with 1 sample weighs as much as one with 3,000": (
        lambda epoch, good: sum(_means(epoch)) / len(epoch) < good
    ),
    "the loss of rank 0 decides for all": lambda epoch, good: _means(epoch)[0] < good,
    "losses are added up, and never divided by the number of samples": (
        lambda epoch, good: sum(total for total, _ in epoch) < good
    ),
    "it takes nan for a loss that is good enough": lambda epoch, good: not mean(epoch) >= good,
    "it stops when the loss has reached `good`, and not only below": lambda epoch, good: mean(epoch) <= good,
}


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    right = epochs_if(case, lambda epoch, good: mean(epoch) < good)
    for rank, facts in enumerate(world):
        trained = facts["log"].count("train")
        if trained != right and "returned" in facts:
            ways = [words for words, decides in MISTAKES.items() if epochs_if(case, decides) == trained]
            words = "the mean loss over all samples of all ranks decides"
            words += f": is it that {', or that '.join(ways[:2])}?" if ways else ", and nothing else"
            yield Broken("value:epochs", words, f"{trained} epochs", f"{right} epochs", rank)
            continue
        if facts["log"] != ["train", "validate"] * trained and "returned" in facts:
            words = "train_until calls train_epoch() and validate() in another order: once each, in turn"
            yield Broken("value:order", words, " ".join(facts["log"][:6]), "train validate train validate …", rank)
        if facts.get("swallowed"):
            words = "train_until swallows an error of validate(): the loss is not known then, so let the error come out"
            yield Broken("value:swallowed", words, "nothing came out", "an OSError", rank)
        if facts["returned"] != right:
            words = "train_until does not return how many epochs were trained"
            yield Broken("value:returned", words, str(facts["returned"]), str(right), rank)
        why = "a sum and a number of samples fit into one tensor of two numbers"
        yield from talk.judge_calls(facts, CALLS * right, BYTES, "a decision after each epoch", why, rank)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    most = max(-(-len(facts["calls"]) // facts["log"].count("train")) for _, world in played for facts in world)
    return {
        "trainings": len(played),
        "ranks": talk.world_sizes(played),
        "they stop": "after the same epoch",
        "collectives for it": f"{most} an epoch",
    }


CONTRACT = Contract(
    name="torchrun.stop_early",
    rules={"train_until": Rules(wire=lambda *_: talk.any_collective(1000, 10**6, "barrier"), same_calls=False)},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("value:calls", "{}"),
        ("value:bytes", "{}"),
        (
            "wire:disagree",
            "the ranks do not stop after the same epoch, or do not ask each other the same: {}. Whatever decides on "
            "the way of the program must be the same number on all ranks",
        ),
        ("wire:other *", "{}: collectives are enough"),
    ),
    figures=figures,
)
