"""Exercise 2: the class ``ParallelAttention(qkv, out, heads)``, which keeps some heads and is called with x."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules, compare
from checks.tensor_parallelism import parts

if TYPE_CHECKING:
    from torch import Tensor


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks in (2, 2, 3, 4):
        kind = ("float64", "float32", *rng.choices(("float64", "float32"), k=2))[len(cases)]
        heads = ranks * (2 if not cases else rng.randint(1, 3))
        shape = {"heads": heads, "width": heads * rng.randint(2, 5), "batch": rng.randint(1, 3) if cases else 2}
        cases.append({"ranks": ranks, "type": kind, **shape, "length": rng.randint(2, 7), "seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    from torch import nn

    from checks.contracts import memory

    dtype, width = getattr(torch, case["type"]), case["width"]
    generator = torch.Generator().manual_seed(case["seed"])
    qkv, out = (parts.randn(generator, shape, dtype) for shape in ((3 * width, width), (width, width)))
    x = parts.randn(generator, (case["batch"], case["length"], width), dtype).requires_grad_()
    upstream = parts.randn(generator, x.shape, dtype)
    whole = {"qkv": qkv.clone(), "out": out.clone()}
    facts |= whole | {
        "x": x.detach().clone(),
        "bytes": x.nbytes,
        "upstream": upstream.clone(),
    }
    given = [_reference(one) for one in (qkv, out)]
    with (living := memory.living(qkv, out)):
        made = watch.call("ParallelAttention", qkv=qkv, out=out, heads=case["heads"])
    mine = {name: getattr(made, name, None) for name in ("qkv", "out")}
    facts["kinds"] = {name: isinstance(one, nn.Parameter) for name, one in mine.items()}
    if not all(facts["kinds"].values()):
        return
    facts |= {"mine": {name: one.detach().clone() for name, one in mine.items()}}
    shapes = {"qkv": (3 * width // case["ranks"], width), "out": (width, width // case["ranks"])}
    facts["storage"] = {name: one.untyped_storage().nbytes() for name, one in mine.items()}
    if any(tuple(one.shape) != shapes[name] for name, one in mine.items()):
        return
    del qkv, out
    kept = memory.is_kept(*given)
    copied = living.now(*mine.values(), masks=False)
    copied += memory.not_tensors(watch.answers["ParallelAttention"].function, made)
    facts["may go"] = not kept and copied < min(facts["storage"].values())
    for number in parts.rounds(facts, x, *mine.values()):
        facts |= {name: one / 2**number for name, one in whole.items()} | {"x": x.detach().clone()}
        facts["mine"] = {name: one.detach().clone() for name, one in mine.items()}
        with watch.step("forward", made, x=(inner := x.clone()), **mine):
            y = made(inner)
        if not parts.usable(facts, "y", y) or y.shape != x.shape:
            return
        other = torch.ones((case["batch"] + number, *x.shape[1:]), dtype=dtype, requires_grad=True)
        with parts.meanwhile(facts, "y", y), watch.step(parts.BETWEEN, x=other):
            watch.answers["ParallelAttention"](*map(torch.ones_like, whole.values()), case["ranks"])(other)
        if facts["overwritten"]:
            return
        with watch.step("backward", made, x=x, upstream=upstream, **mine):
            y.backward(upstream)
        parts.note_gradients(facts, x=x, **mine)
        reference, inner, y = _reference(inner), None, None
        facts["x may go"] = not memory.is_kept(reference)


@parts.each_round
def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    import torch

    ranks, heads = len(world), case["heads"]
    qkv, out, x = (world[0][name].double().requires_grad_() for name in ("qkv", "out", "x"))
    summands = [_attention(x, *_part(qkv, out, rank, ranks), heads // ranks) for rank in range(ranks)]
    y = sum(summands)
    uses = [torch.autograd.grad(one, x, world[0]["upstream"].double(), retain_graph=True)[0] for one in summands]
    y.backward(world[0]["upstream"].double())
    weights = [_part(qkv.detach(), out.detach(), rank, ranks) for rank in range(ranks)]
    gradients = [_part(qkv.grad, out.grad, rank, ranks) for rank in range(ranks)]
    for rank, facts in enumerate(world):
        dtype = facts["x"].dtype
        for name, fits in facts["kinds"].items():
            if not fits:
                words = f"the object has no nn.Parameter called `{name}`, this rank's part of the weight"
                yield Broken("value:0 none", words, rank=rank)
                return
        for which, name in enumerate(("qkv", "out")):
            right = weights[rank][which].to(dtype)
            guesses = {
                "is the whole weight: each rank keeps its own heads": (qkv, out)[which].detach(),
                "is cut straight through q, k and v: a rank then has no whole head of its own": qkv.detach().chunk(
                    ranks
                )[rank],
            }
            guesses = {words: one for words, one in guesses.items() if one.shape == facts["mine"][name].shape}
            if facts["mine"][name].shape != right.shape and guesses:
                words = f"`{name}` {next(iter(guesses))}"
                yield Broken("value:0 shape", words, list(facts["mine"][name].shape), list(right.shape), rank=rank)
                continue
            what = f"`{name}`, this rank's part of the weight,"
            yield from compare(f"value:0 {name}", what, facts["mine"][name], [right], 1.0, guesses, rank=rank)
            if facts["storage"][name] > right.nbytes:
                words = f"`{name}` is a view of a larger tensor, all of which stays in memory with it"
                seen = f"{facts['storage'][name]:,} bytes"
                yield Broken("memory:view", words, seen, f"{right.nbytes:,}", rank=rank)
        if not facts.get("may go", True):
            yield Broken(
                "memory:kept",
                "the object holds more than its part of the weights: they may go when you have it",
                rank=rank,
            )
        if not facts.get("x may go", True):
            yield Broken(
                "memory:x",
                "the object still holds `x` after the backward pass, and it keeps nothing of what it was given",
                rank=rank,
            )
        if "y" not in facts:
            continue
        where = {"steps": parts.ROUNDINGS, "rank": rank}
        mine = summands[rank].detach()
        guesses = {"is this rank's summand: nothing of the others has arrived": mine}
        guesses["sees the tokens behind it: attention here is causal"] = _whole(qkv, out, x, heads, causal=False)
        yield from compare("value:1 y", "the result", facts["y"], [y.detach().to(dtype)], 1.0, guesses, **where)
        if not facts["connected"]:
            yield Broken("value:2 cut", f"the result {parts.CUT}", rank=rank)
        if "gradients" not in facts:
            continue
        pairs = {"x": x.grad, "qkv": gradients[rank][0], "out": gradients[rank][1]}
        for name, right in pairs.items():
            guesses = {f"is {ranks} times too large: a sum over the ranks too many": ranks * right}
            if name == "x":
                only = "comes from this rank's heads alone: all ranks have used x, so it is the sum of theirs"
                guesses = {only: uses[rank], **guesses}
            beside = [one for one in uses] if name == "x" else [qkv.grad, out.grad]
            what, found = f"the gradient of {name}", facts["gradients"][name]
            yield from compare(f"value:3 {name}", what, found, [right.to(dtype)], 1.0, guesses, beside=beside, **where)


def _reference(tensor: Tensor) -> Any:
    from checks.contracts.memory import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())


def _part(qkv: Tensor, out: Tensor, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
    import torch

    rows = torch.cat([one.chunk(ranks)[rank] for one in qkv.chunk(3)])
    return rows, out.chunk(ranks, 1)[rank]


def _attention(x: Tensor, qkv: Tensor, out: Tensor, heads: int, causal: bool = True) -> Tensor:
    """By hand, in float64: each head's result, and this rank's share of the last matrix."""
    import torch

    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (x @ qkv.t()).chunk(3, -1))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ out.t()


def _whole(qkv: Tensor, out: Tensor, x: Tensor, heads: int, causal: bool) -> Tensor:
    return _attention(x.detach(), qkv.detach(), out.detach(), heads, causal)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, world = played[0]
    kept = sum(world[0]["storage"].values())
    return {
        "attentions": f"{len(played)}, on {parts.world_sizes(played)} ranks",
        f"weights of {case['heads'] // case['ranks']} of {case['heads']} heads": f"{kept:,} bytes",
        "forward and backward": f"one all-reduce each, {world[0]['bytes']:,} bytes",
    }


def _one(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
    return {"all_reduce": Amount(1, facts["bytes"])}


def _other(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
    return {"all_reduce": Amount(1, facts["bytes"] // case["batch"] * (case["batch"] + 1), least=facts["bytes"])}


CONTRACT = Contract(
    name="tensor_parallelism.parallel_attention",
    rules={
        "ParallelAttention": Rules(),
        "forward": Rules(wire=_one),
        parts.BETWEEN: Rules(wire=_other),
        "backward": Rules(changes=parts.GRADIENTS, wire=_one),
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("value:0 *", "{}"),
        *parts.MISTAKES,
        ("wire:other all_gather", "{}: rows of the last matrix need just the heads that their rank has"),
        ("wire:other *", "{}"),
        ("value:1 *", "{}"),
        ("value:2 *", "{}"),
        ("value:3 x:comes*", "{}"),
        ("value:*", "{}"),
        ("wire:*", "{}"),
        ("memory:*", "{}"),
    ),
    refused=parts.REFUSED,
    figures=figures,
)
