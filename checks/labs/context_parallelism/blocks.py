"""Checks of attention over blocks of keys: what they give is merged, and in a ring the next one is on its way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, leaves, refuse, same, watched
from checks.engine.plain import kind_of
from checks.engine.watching import waits

WEIGHTS = "(lses - lse).exp()"
MERGE = Reference("context_parallelism", "merge", {
    "it is the mean of the blocks' results: each counts by its share of the sum of exponentials":
        {WEIGHTS: "torch.full_like(lses, 1 / len(blocks))"},
    "it is the sum of the blocks' results: each counts by its share of the sum of exponentials":
        {WEIGHTS: "torch.ones_like(lses)"},
    "each block counts by its lse: that is a logarithm, take exp() of it": {WEIGHTS: "lses / lses.sum(0)"},
    "a block's weight is its exponential against the largest one: the weights do not add up to one":
        {WEIGHTS: "(lses - lses.amax(0)).exp()"},
    "the returned lse is the largest of the blocks', not the logarithm of the sum of all exponentials":
        {".to(blocks[0][0].dtype), lse": ".to(blocks[0][0].dtype), lses.amax(0)"},
})  # fmt: skip
BLOCKS = [
    {"dtype": dtype, "blocks": blocks, "lse_around": around, "without_keys": without, "seed": seed}
    for seed, (dtype, blocks, around, without) in enumerate([
        ("float32", 2, 0, "nothing"), ("float64", 5, 0, "nothing"), ("float32", 4, 300, "nothing"),
        ("float32", 4, -300, "nothing"), ("float32", 3, 0, "zeros"), ("float32", 1, 0, "NaN"),
        ("float64", 3, 0, "NaN"), ("bfloat16", 16, 0, "nothing"), ("bfloat16", 6, 200, "NaN"),
    ])
]  # fmt: skip


@exercise(MERGE, BLOCKS, title="One result out of several blocks", difficulty=2, minutes=20, timeout=30)
def merge(case: dict[str, Any], merge: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``merge(blocks)``."""
    blocks = _blocks(case)
    with leaves(blocks=blocks):
        result = merge(blocks)
    pair = isinstance(result, tuple | list) and len(result) == 2
    tensors = pair and all(isinstance(one, torch.Tensor) for one in result)
    refuse(not tensors, "the result is not two tensors, (out, lse)", measured=kind_of(result))
    out, lse = result
    outs, lses = (torch.stack(parts).double() for parts in zip(*blocks, strict=True))
    if out.shape == outs.shape[1:] and lse.shape == lses.shape[1:]:
        _finite(case, out, lse, nobody=(lses == -math.inf).all(0))
        _rounded_once(out, outs.nan_to_num(), lses)
    return {"out": out, "lse": lse}


def _blocks(case: dict[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What attention gives for some blocks of keys. In some cases a query sees none of a block's, or none at all."""
    torch.manual_seed(case["seed"])
    dtype, count = getattr(torch, case["dtype"]), case["blocks"]
    batch, heads, tokens, size = 2, *torch.randint(2, 6, (3,)).tolist()
    lses = torch.randn(count, batch, heads, tokens) * 2 + case["lse_around"]
    outs = torch.randn(count, batch, heads, tokens, size).to(dtype)
    if case["without_keys"] != "nothing":
        unseen = torch.rand(lses.shape) < 0.4
        unseen[0, 0, 0, 0], unseen[:, 0, 0, 1], unseen[:, 1, 0, 0] = True, True, False
        lses[unseen] = -math.inf
        outs[unseen] = math.nan if case["without_keys"] == "NaN" else 0.0
    return list(zip(outs, lses.double() if dtype == torch.float64 else lses, strict=True))


def _finite(case: dict[str, Any], out: torch.Tensor, lse: torch.Tensor, nobody: torch.Tensor) -> None:
    """Refuse NaN and infinity, and say where they come from."""
    broken = not bool(out[~nobody].isfinite().all() and lse[~nobody].isfinite().all())
    broken |= bool(out[nobody].isnan().any() or lse[nobody].isnan().any())
    fault = {
        "nothing": "the result is not finite: exp() of a large lse overflows, so take the largest lse off before it",
        "zeros": "NaN or infinity where a query sees no key in a block, or in any: −inf − (−inf) is NaN, and 0 / 0",
        "NaN": "NaN or infinity where a query sees no key in a block: its out may be anything, and 0 · NaN is NaN",
    }  # (in this order: where zeros do no harm, it is the NaN)
    refuse(broken, fault[case["without_keys"]])


def _rounded_once(out: torch.Tensor, outs: torch.Tensor, lses: torch.Tensor) -> None:
    """Refuse sums in bfloat16: not more than one rounding of the result, and a little for float32 on the way."""
    exact = (lses.softmax(0).nan_to_num()[..., None] * outs).sum(0)
    bound = 2.0**-8 * exact.abs() + 1e-4 * outs.abs().max()
    wrong = (out.double() - exact).abs()
    near = float(wrong.max()) < 0.05 * float(outs.abs().max())  # what is further off has another reason
    fault = "numbers are rounded to bfloat16 on the way, more than once: compute in float32, and round the result"
    worst = float((wrong / bound).max())
    refuse(out.dtype == torch.bfloat16 and near and worst > 1, fault, measured=f"{worst:.1f} times the bound")


MASK = "causal and origin == rank"
RING = Reference("context_parallelism", "ring_attention", {
    "the triangle is masked in every block: it belongs to a rank's own keys only": {MASK: "causal"},
    "a rank's own block is not masked: its tokens see later ones": {MASK: "False"},
    "the triangle is masked without being asked for: `causal` is False": {MASK: "origin == rank"},
    "a block is taken for another rank's: after s steps rank r has that of rank r - s, around the ring":
        {"(rank - step) % ranks": "(rank + step) % ranks"},
    "it attends to later blocks, and not to earlier ones: causal is the other way round":
        {"origin <= rank": "origin >= rank"},
    "only the last block's result comes back: merge it with those before": {"merge(found, mine)": "mine"},
    "what has come is never looked at: each step computes with the rank's own keys": {"keys = coming": "pass"},
    "keys come with the values of another rank: those of the rank itself":
        {"attend(q, *keys,": "attend(q, keys[0], v,"},
})  # fmt: skip
RINGS = [
    {"causal": False, "dtype": "float64", "contiguous": True, "seed": 1},
    {"causal": True, "dtype": "float64", "contiguous": True, "seed": 2},
    {"causal": True, "dtype": "float32", "contiguous": False, "seed": 3},
]
Pair = tuple[torch.Tensor, torch.Tensor]


@exercise(RING, RINGS, title="A ring that computes while it waits", difficulty=3, minutes=30, ranks=(3, 2, 1))
def ring_attention(case: dict[str, Any], ring_attention: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``ring_attention(q, k, v, causal, attend, merge)``."""
    rank, ranks, causal = dist.get_rank(), dist.get_world_size(), case["causal"]
    q, k, v = _parts(case, rank)
    [official] = RING.functions()
    right, attended = official(q, k, v, causal, _attend, _merge), 0

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Pair:
        nonlocal attended
        attended += 1
        seen.mark()
        fault = "attend reads tensors into which a block is being received: take new ones for it"
        refuse(any(_one_place(new, old) for new in seen.coming() for old in (k, v)), fault)
        return _attend(q, k, v, causal)

    with leaves(q=q, k=k, v=v), watched(allowed=("send", "recv")) as seen:
        result = ring_attention(q, k, v, causal, attend, _merge)
    refuse(not isinstance(result, tuple | list) or len(result) != 2, "the result is not a pair: (out, lse)")
    block = k.nbytes + v.nbytes
    if same(result, right):  # (else it is told what is wrong with the numbers)
        _overlap(seen.calls, attended, block)
    peers = {call["peer"] for call in seen.calls if call["name"] == "send"}
    return {
        "out": result[0],
        "lse": result[1],
        "how often attend is called (once for each block that these queries may see)": attended,
        "ranks that messages go to, beside the next one in the ring": sorted(peers - {(rank + 1) % ranks}),
        f"bytes that are sent beyond {ranks - 1} blocks of keys and values": max(0, seen.sent() - (ranks - 1) * block),
    }


def _overlap(calls: list[dict[str, Any]], attended: int, block: int) -> None:
    """While a rank attends to a block (not the last one), the next one is coming, and no more than that."""
    for i in range(attended):
        coming = [call for call in calls if call["name"] == "recv" and call["ready"] <= i < call["waited"]]
        bytes_, told = sum(call["bytes"] for call in coming), f"during call {i + 1} of {attended} of attend"
        fault = f"{told}, the next block is not on its way: begin to receive it before attend, and wait afterwards"
        refuse(bytes_ < block and i < attended - 1, f"{fault} (in bytes)", measured=bytes_, expected=block)
        fault = f"{told}, more than one block is on its way: there is room for two, this and the next (in bytes)"
        refuse(bytes_ > block, fault, measured=bytes_, expected=block)
    early = [call for call in calls if call["name"] == "send" and call["waited"] == call["ready"] < attended]
    refuse(early, "waits until a message is sent, and calls attend only then: begin to send, attend, and wait after it")
    waits(calls)


def _one_place(*tensors: torch.Tensor) -> bool:
    """Whether two tensors share memory."""
    lengths = [sum((n - 1) * step for n, step in zip(one.shape, one.stride(), strict=True)) for one in tensors]
    ends = [one.data_ptr() + length * one.itemsize for one, length in zip(tensors, lengths, strict=True)]
    return max(one.data_ptr() for one in tensors) <= min(ends)


def _parts(case: dict[str, Any], rank: int) -> list[torch.Tensor]:
    """Queries, keys and values of a rank; four heads of queries share two of keys and values."""
    torch.manual_seed(case["seed"])
    batch, tokens, size = torch.randint(1, 4, (3,)).tolist()
    torch.manual_seed(1000 * case["seed"] + rank)
    shapes = [(batch, tokens + 1, heads, size + 1) for heads in (4, 2, 2)]
    parts = [torch.randn(shape, dtype=getattr(torch, case["dtype"])).transpose(1, 2) for shape in shapes]
    return [part.contiguous() for part in parts] if case["contiguous"] else parts


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Pair:
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for one in (k, v))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def _merge(one: Pair | None, other: Pair) -> Pair:
    if one is None:
        return other
    lse = torch.logaddexp(one[1], other[1])
    return one[0] * (one[1] - lse).exp()[..., None] + other[0] * (other[1] - lse).exp()[..., None], lse
