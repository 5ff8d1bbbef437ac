"""Exercise 1: ``reduce_gradients(parameters)``: this rank's shard of the mean of all gradients."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules, compare
from checks.sharded_data_parallel import layers

STEPS = 2


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks in (3, 3, 2, rng.choice((4, 5))):
        kind = "float64" if not cases else rng.choice(("float64", "float32"))
        padding = "some" if len(cases) % 2 == 0 else "none"
        many = "one" if ranks == 2 else "several"
        cases.append(
            {"ranks": ranks, "type": kind, "parameters": many, "padding": padding, "seed": rng.getrandbits(30)}
        )
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    from checks.contracts import memory

    rank, ranks = dist.get_rank(), case["ranks"]
    dtype = getattr(torch, case["type"])
    shapes = layers.draw_shapes(case["seed"], ranks, case["padding"] == "some", case["parameters"] == "one")
    parameters = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]
    facts |= {"bytes": layers.joined(parameters, ranks).nbytes, "steps": []}
    returned, living = [], memory.living(*parameters)
    for step in range(STEPS):
        layers.draw_gradients(parameters, case["seed"] + 100 * step + rank)
        if not step and rank == case["seed"] % ranks:  # all zero, and travels all the same
            parameters[0].grad.zero_()
        if step and rank == case["seed"] % ranks:  # as a training has it that goes wrong, and has to notice
            parameters[-1].grad[-1] = (math.nan, math.inf)[case["seed"] % 2]
        own = layers.joined([one.grad for one in parameters], ranks)
        theirs = [memory.StorageWeakRef(one.grad.untyped_storage()) for one in parameters]
        living.given |= {one.grad.untyped_storage()._cdata for one in parameters}
        with living:
            got = watch.call("reduce_gradients", parameters=parameters)
        left = [number for number, one in enumerate(parameters) if one.grad is not None]
        storage = got.untyped_storage().nbytes() if isinstance(got, torch.Tensor) else 0
        returned.append(got)
        there = [one for one in returned if isinstance(one, torch.Tensor)]
        held = living.now(*there) + memory.not_tensors(watch.answers["reduce_gradients"].function, *there)
        got = got.detach().clone() if isinstance(got, torch.Tensor) else None
        found = {"own": own, "got": got, "left": left, "storage": storage, "held": held}
        facts["steps"].append(found | {"kept": not left and memory.is_kept(*theirs)})
    for found, shard in zip(facts["steps"], returned, strict=True):
        found["stays"] = found["got"] is None or torch.equal(found["got"].nan_to_num(), shard.nan_to_num())


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    ranks = len(world)
    for step in range(STEPS):
        shards = [facts["steps"][step]["own"].chunk(ranks) for facts in world]
        means = [sum(own[place].double() for own in shards) / ranks for place in range(ranks)]
        for rank, facts in enumerate(world):
            found, where = facts["steps"][step], {"rank": rank, "call": step}
            guesses = {
                f"is the sum over the ranks: divide by the world size, {ranks}": means[rank] * ranks,
                "is cut out of this rank's own gradient: nothing of the others has arrived": shards[rank][rank],
            }
            guesses |= {f"is the shard of rank {other}": means[other] for other in range(ranks) if other != rank}
            terms = [own[rank] for own in shards]
            yield from compare("value:shard", "the shard", found["got"], terms, 1 / ranks, guesses, **where)
            if not found["stays"]:
                words = "a later call has written into the shard that this one has returned: give each its own memory"
                yield Broken("value:stays", words, **where)
            if found["left"]:
                words = "the whole gradient is still there, in `.grad`: set it to None, or nothing is saved"
                yield Broken("value:left", words, f"{len(found['left'])} gradients", "none", **where)
            words = "after the call more than the shard is still held, in a global or an attribute"
            if found["held"] >= facts["bytes"]:
                yield Broken("value:held", words, f"{found['held']:,} bytes beside it", "none", **where)
            elif found["kept"]:
                yield Broken("value:held", f"{words}: the gradients that `.grad` has let go of", **where)
            if found["storage"] > facts["bytes"] // ranks:
                words = "the shard is a view into a larger tensor, all of which stays in memory with it"
                yield Broken("value:view", words, f"{found['storage']:,} bytes", facts["bytes"] // ranks, **where)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    facts = played[0][1][0]
    return {
        "world sizes": layers.world_sizes(played),
        "handed in, in one reduce-scatter": f"{facts['bytes']:,} bytes of the first",
        "kept": f"{facts['bytes'] // played[0][0]['ranks']:,} bytes",
    }


CONTRACT = Contract(
    name="sharded_data_parallel.reduce_gradients",
    rules={
        "reduce_gradients": Rules(
            changes=layers.GRADIENTS,
            wire=lambda case, rank, facts: {"reduce_scatter": Amount(1, facts["bytes"])},
        )
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *layers.MISTAKES,
        ("value:shard:none", "{}: return this rank's shard"),
        ("value:shard:type", "{}: a flat tensor of a rank's share of the padded length"),
        ("wire:pieces *", "{}: put all gradients into one flat tensor first"),
        ("value:*", "{}"),
    ),
    refused=layers.REFUSED,
    figures=figures,
)
