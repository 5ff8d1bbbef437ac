"""Exercise 4: ``sequence_norm(x, weight, eps)``: RMSNorm of this rank's tokens, then all tokens for everybody."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules, compare
from checks.tensor_parallelism import parts

MOST = 4  # of its own tokens that a rank may hold until the backward pass


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks in (5, 5, 2, rng.choice((3, 4))):
        kind = ("float64", "float32", *rng.choices(("float64", "float32"), k=2))[len(cases)]
        shape = {
            "batch": 2 if not cases else rng.randint(1, 3),
            "tokens": rng.randint(2, 5),
            "width": rng.randint(16, 40),
        }
        cases.append(
            {"ranks": ranks, "type": kind, **shape, "eps": rng.randint(20, 500) / 1000, "seed": rng.getrandbits(30)}
        )
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    from checks.contracts import memory

    rank, dtype = dist.get_rank(), getattr(torch, case["type"])
    shared = torch.Generator().manual_seed(case["seed"])
    own = torch.Generator().manual_seed(case["seed"] + 1 + rank)
    weight = nn.Parameter(parts.randn(shared, [case["width"]], dtype))
    x = parts.randn(own, (case["batch"], case["tokens"], case["width"]), dtype).requires_grad_()
    upstream = parts.randn(own, (case["batch"], case["ranks"] * case["tokens"], case["width"]), dtype)
    facts |= {"bytes": x.nbytes, "bytes of weight": weight.nbytes, "upstream": upstream.clone()}
    living = memory.living(x, weight, upstream)
    for number in parts.rounds(facts, x, weight):
        facts |= {"x": x.detach().clone(), "weight": weight.detach().clone()}
        with living:
            y = watch.call("sequence_norm", x=parts.inside(x), weight=weight, eps=case["eps"])
        if not parts.usable(facts, "y", y) or y.shape != upstream.shape:
            return
        own = [one.grad for one in (x, weight) if one.grad is not None]
        held = memory.not_tensors(watch.answers["sequence_norm"].function, y)
        facts["between"] = living.now(y, *own) + memory.beside(y) + held
        size = parts.other_size(x.shape) if number else x.shape
        other = torch.ones(size, dtype=dtype, requires_grad=True)
        with parts.meanwhile(facts, "y", y), watch.step(parts.BETWEEN, x=other, weight=weight):
            watch.answers["sequence_norm"](other, weight, 0.1)
        if facts["overwritten"]:
            return
        with watch.step("backward", x=x, weight=weight, upstream=upstream):
            y.backward(upstream)
        parts.note_gradients(facts, x=x, weight=weight)
        y = None


@parts.each_round
def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    import torch
    from torch.nn.functional import rms_norm

    ranks, tokens, dtype = len(world), case["tokens"], world[0]["x"].dtype
    xs = [facts["x"].double().requires_grad_() for facts in world]
    weights = [world[0]["weight"].double().clone().requires_grad_() for _ in world]  # each rank's use of it
    normed = [rms_norm(x, x.shape[-1:], w, case["eps"]) for x, w in zip(xs, weights, strict=True)]
    y = torch.cat(normed, 1)
    y.backward(sum(facts["upstream"].double() for facts in world))
    total = sum(one.grad for one in weights)
    # What rank r's gradient would be without anything from the others.
    own = [one["upstream"].double()[:, r * tokens : (r + 1) * tokens] for r, one in enumerate(world)]
    alone = []
    for x, upstream in zip(xs, own, strict=True):
        leaves = [one.detach().double().clone().requires_grad_() for one in (x, world[0]["weight"])]
        rms_norm(leaves[0], x.shape[-1:], leaves[1], case["eps"]).backward(upstream)
        alone.append([one.grad for one in leaves])
    for rank, facts in enumerate(world):
        where = {"steps": parts.ROUNDINGS, "rank": rank}
        flat = torch.cat([one.detach().flatten(0, 1) for one in normed]).view_as(y)
        guesses = {"has the tokens of the batch mixed up: it is dimension 1 that is gathered": flat}
        terms = [y.detach().to(dtype)]
        yield from compare("value:0 y", "the result", facts["y"], terms, 1.0, guesses, **where)
        if not facts["connected"]:
            yield Broken("value:1 cut", f"the result {parts.CUT}", rank=rank)
        limit = MOST * facts["bytes"]
        if facts.get("between", 0) > limit:
            words = (
                "until the backward pass more is held than one needs for this rank's tokens: norm first, then gather"
            )
            yield Broken("memory:whole", words, f"{facts['between']:,} bytes", f"at most {limit:,}", rank=rank)
        if "gradients" not in facts:
            continue
        right = xs[rank].grad
        guesses = {
            "is cut out of this rank's own: other ranks have used these tokens too, so it is the sum": alone[rank][0],
            "is the mean over the ranks": right / ranks,
            f"is {ranks} times too large: a sum over the ranks too many": right * ranks,
        }
        found, terms = facts["gradients"], [right.to(dtype)]
        yield from compare("value:2 x", "the gradient of x", found["x"], terms, 1.0, guesses, **where)
        guesses = {
            "is that of this rank's tokens: all ranks have the same weight, so it is the sum of theirs": weights[
                rank
            ].grad,
            "is the mean over the ranks: each token counts once, so it is the sum": total / ranks,
            f"is {ranks} times too large: a sum over the ranks too many": total * ranks,
        }
        terms, beside = [total.to(dtype)], [one.grad for one in weights]
        what = "the gradient of the weight"
        yield from compare("value:3 weight", what, found["weight"], terms, 1.0, guesses, beside=beside, **where)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    facts = played[0][1][0]
    return {
        "norms": f"{len(played)}, on {parts.world_sizes(played)} ranks",
        "gathered, and scattered again": f"{facts['bytes']:,} bytes from each rank of the first",
        "held until the backward pass": f"{facts['between']:,} bytes",
    }


CONTRACT = Contract(
    name="tensor_parallelism.sequence_norm",
    rules={
        "sequence_norm": Rules(wire=lambda case, rank, facts: {"all_gather": Amount(1, facts["bytes"])}),
        parts.BETWEEN: Rules(wire=lambda case, rank, facts: {"all_gather": Amount(1, facts["bytes"])}),
        "backward": Rules(
            changes=parts.GRADIENTS,
            wire=lambda case, rank, facts: {
                "reduce_scatter": Amount(1, case["ranks"] * facts["bytes"]),
                "all_reduce": Amount(1, facts["bytes of weight"], least=0),
            },
        ),
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *parts.MISTAKES,
        ("wire:other *", "{}"),
        ("wire:none all_gather", "{}"),
        ("value:0 *", "{}"),
        ("value:1 *", "{}"),
        ("wire:more all_reduce", "{}: of the gradients only the weight's, whose size is the width, is summed this way"),
        ("wire:none reduce_scatter", "{}"),
        ("value:3 *:is *", "{}"),  # a known mistake; else x comes first, whose gradient the weight's is made of
        ("value:*", "{}"),
        ("wire:*", "{}"),
        ("memory:*", "{}"),
    ),
    refused=parts.REFUSED,
    figures=figures,
)
