"""Exercise 4: ``sharded_linear(x, shard, rows)``: a linear layer whose weight is gathered, used and freed, twice."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules, compare
from checks.sharded_data_parallel import layers

BEFORE = 0.5  # the gradient of a step before, where there is one


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks in (3, 2, rng.choice((4, 5))):
        for _ in range(2 if ranks == 3 else 1):
            kind = "float64" if not cases else rng.choice(("float64", "float32"))
            shape = {
                "rows": rng.randint(20, 40),
                "columns": rng.randint(20, 40),
                "batch": rng.choice((1, rng.randint(2, 6), rng.randint(7, 30))),
            }
            earlier = {"a gradient before": len(cases) % 2 == 1}
            many = {"layers": 2 if len(cases) in (1, 2) else 1}
            if len(cases) == 2:
                shape["batch"] = 1
            if len(cases) == 3:  # fewer rows than there are zeros in the padding
                shape |= {"rows": 1, "columns": shape["columns"] // ranks * ranks + 1}
            cases.append({"ranks": ranks, "type": kind, **shape, **many, **earlier, "seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    from checks.contracts import memory

    rank, ranks = dist.get_rank(), case["ranks"]
    dtype = getattr(torch, case["type"])
    generator = torch.Generator().manual_seed(case["seed"])
    mine = torch.Generator().manual_seed(case["seed"] + 1 + rank)
    made, given = [], []
    shapes = [(case["rows"], case["columns"]), (case["columns"], case["rows"])][: case["layers"]]
    for rows, columns in shapes:
        weight = torch.randn(rows, columns, generator=generator, dtype=dtype)
        shard = nn.Parameter(layers.joined([weight], ranks).chunk(ranks)[rank].clone())
        if case["a gradient before"]:
            shard.grad = torch.full_like(shard, BEFORE)
        x = torch.randn(case["batch"], columns, generator=mine, dtype=dtype).requires_grad_()
        upstream = torch.randn(rows, case["batch"], generator=mine, dtype=dtype).t()
        made.append({"weight": weight, "x": x.detach().clone(), "upstream": upstream.clone()})
        given.append((x, shard, rows, upstream))
    facts |= {"bytes": shard.nbytes * ranks, "layers": made}
    there = [one for x, shard, _, upstream in given for one in (x, shard, shard.grad, upstream) if one is not None]
    living = memory.living(*there)
    outputs = []
    for facts_of, (x, shard, rows, upstream) in zip(made, given, strict=True):
        with living:
            y = watch.call("sharded_linear", x=x, shard=shard, rows=rows)
        tensor = isinstance(y, torch.Tensor)
        facts_of |= {"y": y.detach().clone() if tensor else None, "connected": tensor and y.requires_grad}
        outputs.append(y)
        if not facts_of["connected"] or y.shape != upstream.shape:
            return
        held = memory.not_tensors(watch.answers["sharded_linear"].function, *outputs)
        facts_of["between"] = living.now(*outputs) + memory.beside(*outputs) + held
    y = None
    for facts_of, (x, shard, _, upstream) in zip(made, given, strict=True):
        with living, watch.step("backward", x=x, shard=shard, upstream=upstream):
            outputs.pop(0).backward(upstream)
        facts_of["dx"] = None if x.grad is None else x.grad.clone()
        facts_of["dshard"] = None if shard.grad is None else shard.grad - BEFORE * case["a gradient before"]
        own = [one for x, shard, *_ in given for one in (x.grad, shard.grad) if one is not None]
        facts_of["after"] = living.now(*own, *outputs) + memory.beside(*own)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for layer in range(case["layers"]):
        if all(len(facts["layers"][layer]) > 3 for facts in world):
            yield from _judge_layer(case, [facts | facts["layers"][layer] for facts in world])


def _judge_layer(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    ranks = len(world)
    weight = world[0]["weight"].double()
    wholes = [layers.joined([one["upstream"].double().t() @ one["x"].double()], ranks).chunk(ranks) for one in world]
    for rank, facts in enumerate(world):
        whole, dtype = facts["bytes"], facts["weight"].dtype
        terms = [(facts["x"].double() @ weight.t()).to(dtype)]
        yield from compare("value:0 y", "the output", facts["y"], terms, steps=200, rank=rank)
        if facts["y"] is None:
            return
        if not facts["connected"]:
            words = "the output has lost its way back: x and shard will get no gradient"
            yield Broken("value:1 cut", words, rank=rank)
            return
        if "dx" not in facts:  # an output of another shape
            return
        for when, words in (
            ("between", "between forward and backward the gathered weight is still held: free it, and gather it again"),
            ("after", "after backward the gathered weight, or its whole gradient, is still held: free it"),
        ):
            if facts[when] >= whole // 2:
                yield Broken("memory:whole", words, f"{facts[when]:,} bytes", f"less than {whole // 2:,}", rank=rank)
        terms = [(facts["upstream"].double() @ weight).to(dtype)]
        yield from compare("value:2 dx", "the gradient of x", facts["dx"], terms, steps=200, rank=rank)
        mean = sum(one[rank] for one in wholes) / ranks
        guesses = {
            f"is the sum over the ranks: divide by the world size, {ranks}": mean * ranks,
            "is this rank's own: nothing of the others has arrived": wholes[rank][rank],
        }
        if case["a gradient before"]:
            words = "has replaced the one that was there before: return it from backward, and autograd adds it up"
            guesses[words] = mean - BEFORE
        padding = max(0, (rank + 1) * len(mean) - weight.numel())
        if facts["dshard"] is not None and padding and bool(facts["dshard"].flatten()[-padding:].any()):
            yield Broken("value:3 padding", "the gradient of the shard is not 0 in the padding", rank=rank)
        what, beside = "the gradient of the shard", [one[rank] for one in wholes]
        terms = [mean.to(dtype)]
        yield from compare(
            "value:3 shard", what, facts["dshard"], terms, 1.0, guesses, steps=200, beside=beside, rank=rank
        )


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    every = [layer["between"] for _, world in played for facts in world for layer in facts["layers"]]
    whole, most = played[0][1][0]["bytes"], max(every)
    return {
        "layers": f"{sum(case['layers'] for case, _ in played)}, on {layers.world_sizes(played)} ranks",
        "a whole weight": f"{whole:,} bytes",
        "held between forward and backward": f"at most {most:,} bytes",
    }


def _forward(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
    return {"all_gather": Amount(1, facts["bytes"] // case["ranks"])}


CONTRACT = Contract(
    name="sharded_data_parallel.sharded_linear",
    rules={
        "sharded_linear": Rules(wire=_forward),
        "backward": Rules(
            changes=layers.GRADIENTS,
            wire=lambda case, rank, facts: _forward(case, rank, facts) | {"reduce_scatter": Amount(1, facts["bytes"])},
        ),
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *layers.MISTAKES[:2],
        ("wire:unwaited *", "{}"),  # what is on its way is held by whoever carries it
        ("memory:whole", "{}"),
        *layers.MISTAKES[2:],
        ("wire:*", "{}"),
        ("value:*", "{}"),
    ),
    refused=(
        *layers.REFUSED,
        "torch.distributed.nn.functional.all_gather",
        "torch.distributed.nn.functional.reduce_scatter",
    ),
    figures=figures,
)
