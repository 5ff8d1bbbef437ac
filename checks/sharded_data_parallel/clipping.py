"""Exercise 3: ``clip_shards(shards, max_norm)``: scale in place by the norm of all ranks' shards."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.plain import number
from checks.sharded_data_parallel import layers

KINDS = ("longer", "shorter", "huge numbers", "all zero")
TO_ZERO = "longer, and max_norm is 0"
CLOSE = 5e-6  # some add a millionth to the norm, so that nobody divides by 0


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks, kinds in ((3, KINDS), (2, ("longer", TO_ZERO)), (rng.choice((4, 5)), rng.sample(KINDS, 2))):
        for kind in kinds:
            dtype = "float32" if kind == "huge numbers" else rng.choice(("float64", "float32"))
            empty = rng.randrange(ranks) if cases else 1
            how = {"type": dtype, "gradient": kind, "rank without a shard": "none" if ranks == 2 else empty}
            cases.append({"ranks": ranks, **how, "seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(case["seed"] + rank)
    scale = {"longer": 10.0 ** (rank % 2), TO_ZERO: 1.0, "shorter": 1e-3, "huge numbers": 1e25, "all zero": 0.0}[
        case["gradient"]
    ]
    count = 0 if rank == case["rank without a shard"] else 1 + (case["seed"] + rank) % 3
    dtype = getattr(torch, case["type"])
    shards = [(scale * torch.randn(5 + n, generator=generator, dtype=torch.float64)).to(dtype) for n in range(count)]
    max_norm = 10.0 if case["ranks"] == 2 else 0.5 + case["seed"] % 4  # on 2 ranks one alone is below it
    max_norm *= case["gradient"] != TO_ZERO
    facts |= {"before": [one.clone() for one in shards], "max": max_norm}
    norm = watch.call("clip_shards", shards=shards, max_norm=max_norm)
    facts["after"] = [one.clone() for one in shards]
    single = isinstance(norm, torch.Tensor) and norm.numel() == 1
    facts["norm"] = float(norm) if single else number(norm)
    facts["kind"] = "None" if norm is None else f"a {type(norm).__name__} that is no single number"
    watch.call("clip_shards", shards=shards, max_norm=2 * max_norm)  # (who keeps something has more of it now)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    import torch

    norms = [sum(float(one.double().square().sum()) for one in facts["before"]) ** 0.5 for facts in world]
    true, most = sum(one**2 for one in norms) ** 0.5, world[0]["max"]
    factor = min(1.0, most / true) if true else 1.0
    for rank, facts in enumerate(world):
        told = facts["norm"]
        if told is None or abs(told - true) > CLOSE * true + 1e-12:
            guesses = {
                f"{facts['kind']}: return the true norm": told is None,
                "not finite: add up in float64": told != told,
            }
            if told is not None:
                guesses |= {
                    "not finite: add up in float64": not abs(told) < float("inf"),
                    "the largest of the ranks' norms: all their squares add up": _close(told, max(norms))
                    and all(one["norm"] == told for one in world),
                    "the norm of this rank's shards alone": _close(told, norms[rank]),
                    "the sum of the ranks' norms: it is the squares that add up": _close(told, sum(norms)),
                    "the square of the norm: take the root": _close(told, true**2),
                    "the norm after clipping: return the one before": factor < 1.0 and _close(told, most),
                    "the mean of the ranks' squares, or its root": _close(told, true / len(world) ** 0.5),
                }
            words = next((words for words, fits in guesses.items() if fits), "not the norm of all shards together")
            yield Broken(f"value:0 {words}", f"what is returned is {words}", _digits(told), _digits(true), rank=rank)
        for before, after in zip(facts["before"], facts["after"], strict=False):
            right = before.double() * factor
            if factor == 1.0 and not torch.equal(before, after):
                words = "the norm is not above max_norm, and all the same the gradient was changed"
                yield Broken("value:1 short", words, rank=rank)
            elif float((after.double() - right).norm()) > CLOSE * float(right.norm()):
                own = min(1.0, most / norms[rank]) if norms[rank] else 1.0
                clipped = float((after.double() - before.double() * own).norm()) <= CLOSE * float(right.norm())
                words = "is scaled by this rank's own norm, so the whole gradient points elsewhere"
                if not clipped or torch.equal(before, after):
                    words = "is not the one before, times max_norm over the true norm"
                yield Broken("value:2 scaled", f"the shard {words}", _digits(after), _digits(right), rank=rank)


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= CLOSE * abs(b)


def _digits(value: Any) -> str:
    if value is None or isinstance(value, float | int):
        return "nothing" if value is None else f"{value:.6g}"
    return f"norm {float(value.double().norm()):.6g}"


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    return {"gradients": f"{len(played)}, on {layers.world_sizes(played)} ranks", "sent by each rank": "8 bytes"}


CONTRACT = Contract(
    name="sharded_data_parallel.clip",
    rules={
        "clip_shards": Rules(
            changes=("shards*.value",),
            wire=lambda case, rank, facts: {"all_reduce": Amount(1, 8)},
        )
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("wire:disagree", "{}: also a rank without a shard takes part, and all send one number in float64"),
        ("wire:unwaited *", "{}"),
        ("wire:other *", "{}: one number is enough"),
        ("wire:fewer *", "clip_shards sends less than one number in float64: 8 bytes"),
        ("wire:*", "{}"),
        ("value:0 *", "{}"),
        ("value:*", "{}"),
    ),
    refused=layers.REFUSED,
    figures=figures,
)
