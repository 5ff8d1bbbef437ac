"""Exercise 4: ``gather_all(predictions)`` brings parts of different length to every rank."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.torchrun import talk

INT64 = 8  # bytes
CALLS, AROUND = 2, 1_000  # collectives, and bytes beside the numbers: all_gather_object pickles
TURNS = 2  # with the same lengths and other predictions


def draw(rng: random.Random) -> list[Case]:
    cases = []
    for ranks in talk.worlds(rng):
        one, usual = rng.randrange(ranks), rng.randint(3, 9)
        empty = [0 if rank == one else usual + rank for rank in range(ranks)]
        long = [rng.randint(300, 800) if rank == one else rng.randint(0, 3) for rank in range(ranks)]
        drawn = [rng.sample(range(1, 13), ranks), [rng.randint(500, 800)] * ranks, empty, [0] * ranks, long]
        for lengths in drawn if ranks > 1 else drawn[::3]:
            cases.append({"ranks": ranks, "lengths": str(lengths), "seed": rng.getrandbits(30)})
    return cases


def _lengths(case: Case) -> list[int]:
    return [int(one) for one in case["lengths"].strip("[]").split(",")]


def part(case: Case, rank: int, turn: int) -> list[int]:
    """What a rank has predicted: any whole numbers, often 0 and -1, also at the end, also all digits of an int64."""
    rng = random.Random(f"{case['seed']} {rank} {turn}")
    return [
        rng.choice((0, -1, rng.randrange(1000), -(2**63), 2**63 - 1, rng.getrandbits(62)))
        for _ in range(_lengths(case)[rank])
    ]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist

    facts["turns"] = []
    for turn in range(TURNS):
        predictions = torch.tensor(part(case, dist.get_rank(), turn), dtype=torch.int64)
        got = watch.call("gather_all", predictions=predictions)
        found = {"kind": type(got).__name__, "calls": talk.calls_of(watch.records[-1])}
        if isinstance(got, torch.Tensor):
            found["got"] = got
        facts["turns"].append(found)
    for found in facts["turns"]:  # (now: each has to stay as it is until the last turn is over)
        if "got" in found:
            found["got"] = found["got"].clone()


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for turn in range(TURNS):
        parts = [part(case, rank, turn) for rank in range(len(world))]
        other = [value for rank in range(len(world)) for value in part(case, rank, 1 - turn)]
        for rank, facts in enumerate(world):
            for one in _judge_one(facts["turns"][turn], parts, rank, other):
                yield one.at(call=turn)


def _judge_one(found: Facts, parts: list[list[int]], rank: int, other: list[int]) -> Iterator[Broken]:
    right = [value for one in parts for value in one]
    largest = 2 * INT64 * max(map(len, parts)) + AROUND
    why = "lengths first, then all parts at once, each padded to the longest and no further"
    yield from talk.judge_calls(found, CALLS, largest, "a gather", why, rank)
    if "got" not in found:
        why = "every rank needs the result" if found["kind"] == "NoneType" else "gather_all returns one tensor"
        yield Broken("value:kind", f"gather_all returns a {found['kind']}: {why}", rank=rank)
        return
    got = found["got"]
    if got.dim() != 1 or str(got.dtype) != "torch.int64":
        measured = f"{list(got.shape)} {got.dtype}"
        words = "gather_all returns a tensor of another shape or type"
        yield Broken("value:type", words, measured, f"{[len(right)]} torch.int64", rank)
    elif got.tolist() == other != right:
        words = "what came back has the predictions of another call: it was kept from the one before, or the next one "
        words += "has overwritten it"
        yield Broken("value:own", words, rank=rank)
    elif got.tolist() != right:
        yield from _values(got.tolist(), right, parts, rank)


def _values(got: list[int], right: list[int], parts: list[list[int]], rank: int) -> Iterator[Broken]:
    figures = f"{len(got)} values", f"{len(right)} values", rank
    lengths = [len(one) for one in parts]
    shortest = [value for one in parts for value in one[: min(lengths)]]
    mine = [value for one in parts for value in (one + [0] * max(lengths))[: lengths[rank]]]
    marks = [[value for value in right if value not in some] for some in ((0,), (-1,), (0, -1), (-(2**63),))]
    if len(got) > len(right) and len(got) == len(parts) * max(lengths):
        yield Broken("value:padding", "the padding is still in it: cut each part to its own length", *figures)
    elif got == shortest:
        yield Broken("value:shortest", "all parts are cut to the shortest one: predictions are lost", *figures)
    elif got in marks:
        yield Broken("value:marks", "predictions are lost: any number may be one, so none can mark padding", *figures)
    elif got == mine:
        yield Broken("value:mine", "all parts are cut to this rank's own length", *figures)
    elif sorted(got) == sorted(right):
        yield Broken("value:order", "all predictions are there, but not in the order of the ranks", *figures)
    elif len(got) == len(right):
        place = next(place for place, (a, b) in enumerate(zip(got, right, strict=True)) if a != b)
        words = f"prediction {place} is not what it was: they are int64, and have to stay so on the way"
        yield Broken("value:digits", words, got[place], right[place], rank)
    else:
        yield Broken("value:others", "these are not the predictions of all ranks", *figures)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    calls = max(len(turn["calls"]) for _, world in played for facts in world for turn in facts["turns"])
    return {"sets of lengths": len(played), "ranks": talk.world_sizes(played), "collectives": f"at most {calls}"}


CONTRACT = Contract(
    name="torchrun.different_lengths",
    rules={"gather_all": Rules(wire=lambda case, *_: talk.any_collective(100, 10**9), same_calls=False)},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        (
            "wire:disagree",
            "{}. With tensors of different length gloo itself gives up, and the process is gone: what must the ranks "
            "know first?",
        ),
        ("wire:other *", "{}: collectives are enough"),
    ),
    figures=figures,
)
