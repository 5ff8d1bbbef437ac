"""Exercise 1: ``column_linear(x, weight, bias)`` and ``row_linear(part, weight, bias)``, one behind the other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules, compare
from checks.tensor_parallelism import parts


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    shapes = [[2, 3], *rng.sample(([4], [2, 3], [3, 1, 2]), 3)]
    for ranks, shape in zip((3, 3, 2, rng.choice((4, 5))), shapes, strict=True):
        kind = ("float64", "float32", *rng.choices(("float64", "float32"), k=2))[len(cases)]
        sizes = dict(zip(("inputs", "outputs"), rng.sample(range(3, 10), 2), strict=True))
        hidden = [rng.randint(1, 5) for _ in range(ranks)]
        if len(cases) == 1:  # square matrices, of which any may be the wrong way round
            sizes["outputs"], hidden = sizes["inputs"], [sizes["inputs"]] * ranks
        case = {"ranks": ranks, "type": kind, "rows": " × ".join(map(str, shape)), **sizes, "seed": rng.getrandbits(30)}
        cases.append(case | {"shape": shape, "hidden": hidden})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    rank, dtype = dist.get_rank(), getattr(torch, case["type"])
    shared = torch.Generator().manual_seed(case["seed"])
    own = torch.Generator().manual_seed(case["seed"] + 1 + rank)
    hidden = case["hidden"][rank]
    x = parts.randn(shared, [*case["shape"], case["inputs"]], dtype).requires_grad_()
    upstream = parts.randn(shared, [*case["shape"], case["outputs"]], dtype)
    last_bias = nn.Parameter(parts.randn(shared, [case["outputs"]], dtype))
    weight = nn.Parameter(parts.randn(own, [hidden, case["inputs"]], dtype))
    bias = nn.Parameter(parts.randn(own, [hidden], dtype))
    last_weight = nn.Parameter(parts.randn(own, [case["outputs"], hidden], dtype))
    leaves = {"x": x, "weight": weight, "bias": bias, "last_weight": last_weight, "last_bias": last_bias}
    facts |= {"bytes x": x.nbytes, "bytes y": upstream.nbytes, "upstream": upstream.clone()}
    for number in parts.rounds(facts, *leaves.values()):
        facts["given"] = {name: one.detach().clone() for name, one in leaves.items()}
        part = watch.call("column_linear", x=parts.inside(x), weight=weight, bias=bias)
        if not parts.usable(facts, "part", part):
            return
        y = watch.call("row_linear", part=torch.tanh(part), weight=last_weight, bias=last_bias)
        if not parts.usable(facts, "y", y) or y.shape != upstream.shape:
            return
        size = parts.other_size(x.shape) if number else x.shape
        sizes = size, weight.shape, bias.shape, last_weight.shape, last_bias.shape
        others = [torch.ones(size, dtype=dtype, requires_grad=True) for size in sizes]
        with parts.meanwhile(facts, "y", y), watch.step(parts.BETWEEN, x=others[0]):
            inner = watch.answers["column_linear"](*others[:3])
            watch.answers["row_linear"](inner, *others[3:])
        if facts["overwritten"]:
            return
        with watch.step("backward", upstream=upstream, **leaves):
            y.backward(upstream)
        parts.note_gradients(facts, **leaves)


@parts.each_round
def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    import torch

    ranks = len(world)
    given = [{name: one.double().requires_grad_() for name, one in facts["given"].items()} for facts in world]
    x, last_bias = given[0]["x"], given[0]["last_bias"]
    inner = [x @ one["weight"].t() + one["bias"] for one in given]
    summands = [torch.tanh(part) @ one["last_weight"].t() for part, one in zip(inner, given, strict=True)]
    y = sum(summands) + last_bias
    uses = [torch.autograd.grad(one, x, world[0]["upstream"].double(), retain_graph=True)[0] for one in summands]
    y.backward(world[0]["upstream"].double())
    for rank, facts in enumerate(world):
        dtype, where = facts["given"]["x"].dtype, {"steps": parts.ROUNDINGS, "rank": rank}
        guesses = {"has no bias": inner[rank].detach() - given[rank]["bias"].detach()}
        terms = [inner[rank].detach().to(dtype)]
        yield from compare("value:0 part", "the result of column_linear", facts["part"], terms, 1.0, guesses, **where)
        if "y" in facts:
            mine, wide = summands[rank].detach(), y.detach()
            guesses = {
                f"has the bias {ranks} times: add it after the sum": wide + (ranks - 1) * last_bias.detach(),
                "is this rank's summand: nothing of the others has arrived": mine + last_bias.detach(),
                "has no bias": wide - last_bias.detach(),
                "is the mean over the ranks, and it is the sum that is asked for": sum(summands).detach() / ranks
                + last_bias.detach(),
            }
            yield from compare(
                "value:1 y", "the result of row_linear", facts["y"], [wide.to(dtype)], 1.0, guesses, **where
            )
        if not facts["connected"]:
            which = "row_linear" if "y" in facts else "column_linear"
            yield Broken("value:2 cut", f"the result of {which} {parts.CUT}", rank=rank)
            continue
        if "gradients" not in facts:
            continue
        for name, found in facts["gradients"].items():
            right = given[rank][name].grad if name not in ("x", "last_bias") else given[0][name].grad
            guesses = {
                f"is {ranks} times too large: a sum over the ranks too many": ranks * right,
                "is the mean over the ranks" if name == "x" else f"is {ranks} times too small": right / ranks,
            }
            if name == "x":
                only = "comes from this rank's columns alone: all ranks have used x, so it is the sum of theirs"
                guesses = {only: uses[rank], **guesses}
            what = f"the gradient of {_WORDS[name]}"
            beside = [one for one in uses] if name == "x" else []
            yield from compare(f"value:3 {name}", what, found, [right.to(dtype)], 1.0, guesses, beside=beside, **where)


_WORDS = {
    "x": "x",
    "weight": "column_linear's weight",
    "bias": "column_linear's bias",
    "last_weight": "row_linear's weight",
    "last_bias": "row_linear's bias",
}


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    facts = played[0][1][0]
    return {
        "pairs of layers": f"{len(played)}, on {parts.world_sizes(played)} ranks",
        "forward": f"one all-reduce, {facts['bytes y']:,} bytes of the first",
        "backward": f"one all-reduce, {facts['bytes x']:,} bytes",
    }


CONTRACT = Contract(
    name="tensor_parallelism.linear_layers",
    rules={
        "column_linear": Rules(),
        "row_linear": Rules(wire=lambda case, rank, facts: {"all_reduce": Amount(1, facts["bytes y"])}),
        parts.BETWEEN: Rules(wire=lambda case, rank, facts: {"all_reduce": Amount(1, facts["bytes y"])}),
        "backward": Rules(
            changes=parts.GRADIENTS, wire=lambda case, rank, facts: {"all_reduce": Amount(1, facts["bytes x"])}
        ),
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *parts.MISTAKES,
        ("wire:other all_gather", "{}: rows need just the columns that their rank has, so nothing is gathered"),
        ("wire:other *", "{}"),
        *((f"value:{number} *", "{}") for number in range(3)),  # what comes first says more
        ("value:3 x:comes*", "{}"),
        ("value:*", "{}"),
        ("wire:*", "{}"),
    ),
    refused=parts.REFUSED,
    figures=figures,
)
