"""Check of ``merge``: softmax over all keys, whatever the scores, also where a block or all of them see no key."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, exercise, leaves, refuse
from checks.engine.plain import kind_of

WEIGHTS = "(lses - lse).exp()"
OFFICIAL = Reference("context_parallelism", "merge", {
    "it is the mean of the blocks' results: each counts by its share of the sum of exponentials":
        {WEIGHTS: "torch.full_like(lses, 1 / len(blocks))"},
    "it is the sum of the blocks' results: each counts by its share of the sum of exponentials":
        {WEIGHTS: "torch.ones_like(lses)"},
    "each block counts by its lse: that is a logarithm, take exp() of it": {WEIGHTS: "lses / lses.sum(0)"},
    "a block's weight is its exponential against the largest one: the weights do not add up to one":
        {WEIGHTS: "(lses - lses.amax(0)).exp()"},
    "the returned lse is the largest of the blocks', not the logarithm of the sum of all exponentials":
        {".to(blocks[0][0].dtype), lse": ".to(blocks[0][0].dtype), lses.amax(0)"},
    "the returned lse is the sum of the blocks': logarithms are not added up":
        {".to(blocks[0][0].dtype), lse": ".to(blocks[0][0].dtype), lses.sum(0)"},
})  # fmt: skip
CASES = [
    {"dtype": dtype, "blocks": blocks, "lse_around": around, "without_keys": without, "seed": seed}
    for seed, (dtype, blocks, around, without) in enumerate([
        ("float32", 2, 0, "nothing"), ("float64", 5, 0, "nothing"), ("float32", 4, 300, "nothing"),
        ("float32", 4, -300, "nothing"), ("float32", 3, 0, "zeros"), ("float32", 1, 0, "NaN"),
        ("float64", 3, 0, "NaN"), ("bfloat16", 16, 0, "nothing"), ("bfloat16", 6, 200, "NaN"),
    ])
]  # fmt: skip


@exercise(OFFICIAL, CASES, title="One result out of several blocks", difficulty=2, minutes=20, timeout=30)
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
    words = {
        "nothing": "the result is not finite: exp() of a large lse overflows, that of a very negative one is 0. Take "
        "the largest lse (or the merged one) off before exp()",
        "zeros": "NaN or infinity where a query sees no key in a block, or in any: −inf − (−inf) is NaN, and 0 / 0",
        "NaN": "NaN or infinity where a query sees no key in a block: its lse is −inf; its out counts for nothing and "
        "may be anything; 0 · NaN is NaN",
    }  # (in this order: where zeros do no harm, it is the NaN)
    refuse(broken, words[case["without_keys"]])


def _rounded_once(out: torch.Tensor, outs: torch.Tensor, lses: torch.Tensor) -> None:
    """Refuse sums in bfloat16: not more than one rounding of the result, and a little for float32 on the way."""
    exact = (lses.softmax(0).nan_to_num()[..., None] * outs).sum(0)
    bound = 2.0**-8 * exact.abs() + 1e-4 * outs.abs().max()
    wrong = (out.double() - exact).abs()
    near = float(wrong.max()) < 0.05 * float(outs.abs().max())  # what is further off has another reason
    words = "numbers are rounded to bfloat16 on the way, more than once: compute in float32, and round the result"
    worst = float((wrong / bound).max())
    refuse(out.dtype == torch.bfloat16 and near and worst > 1, words, measured=f"{worst:.1f} times the bound")
