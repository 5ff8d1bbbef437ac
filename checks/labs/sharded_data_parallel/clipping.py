"""Check of ``clip_shards``: scale in place by the norm of all ranks' shards, also where a rank has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, leaves, refuse, watched
from checks.engine.plain import kind_of, number
from checks.engine.watching import explained

SQUARES, SEND, RESULT = "shard.double().square().sum()", "    dist.all_reduce(squares)\n", "return norm"
ABOVE, SCALE = "if norm > max_norm:", "shard.mul_(max_norm / norm)"
OFFICIAL = Reference("sharded_data_parallel", "clip_shards", {
    "the ranks' norms are added: it is their squares that add up":
        {SEND: f"    squares = squares.sqrt()\n{SEND}    squares = squares**2\n"},
    "the square of the norm is returned: take the root": {RESULT: "return squares"},
    "the norm after clipping is returned: return the one before":
        {RESULT: "return min(norm, torch.tensor(max_norm, dtype=norm.dtype))"},
    "squares of large numbers are infinite in float32: add up in float64": {SQUARES: "shard.square().sum().double()"},
    "a shard is scaled by this rank's own norm, so the whole gradient points elsewhere":
        {SEND: "    own = squares.sqrt()\n" + SEND, SCALE: "shard.mul_(min(1, max_norm / own))"},
    "only ranks whose own norm is above max_norm scale their shards: all do, if the norm of all is above it":
        {SEND: "    own = squares.sqrt()\n" + SEND, ABOVE: "if own > max_norm:"},
    "shards are scaled although the norm is not above max_norm": {ABOVE: "if norm > 0:"},
    "a copy is scaled: multiply the shards in place": {SCALE: "shard = shard * (max_norm / norm)"},
})  # fmt: skip
CASES = [
    {"gradient": "longer than max_norm", "type": "float64", "rank_without_a_shard": 1, "seed": 1},
    {"gradient": "shorter", "type": "float32", "rank_without_a_shard": 0, "seed": 2},
    {"gradient": "of huge numbers", "type": "float32", "rank_without_a_shard": 1, "seed": 3},
    {"gradient": "all zero", "type": "float64", "rank_without_a_shard": 0, "seed": 4},
    {"gradient": "longer, and max_norm is 0", "type": "float64", "rank_without_a_shard": None, "seed": 5},
]


@exercise(OFFICIAL, CASES, title="Clip by the true norm", difficulty=1, minutes=15, ranks=(3, 2, 4))
def clip(case: dict[str, Any], clip_shards: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``clip_shards(shards, max_norm)``, which returns the norm of all ranks' shards."""
    rank, kind = dist.get_rank(), case["gradient"]
    torch.manual_seed(10 * case["seed"] + rank)
    scale = {"shorter": 1e-3, "of huge numbers": 1e25, "all zero": 0.0}.get(kind, 10.0 ** (rank % 2 - 1))
    count = 0 if rank == case["rank_without_a_shard"] else 2 + rank % 2
    dtype = getattr(torch, case["type"])
    shards = [(scale * torch.randn(5 + n, dtype=torch.float64)).to(dtype) for n in range(count)]
    fault = "Also a rank without a shard takes part, and all send one number in float64"
    with leaves(), explained(fault), watched(["all_reduce"]) as wire:
        norm = clip_shards(list(shards), 0.0 if "is 0" in kind else 2.0)
    sent = wire.sent()
    fault = f"{'more' if sent > 8 else 'less'} is sent than one number in float64 (in bytes)"
    refuse(sent not in (0, 8), fault, measured=sent, expected=8)
    single = number(norm.item() if isinstance(norm, torch.Tensor) and norm.numel() == 1 else norm)
    refuse(single is None, "the result is not the norm: a number, or a tensor with one", measured=kind_of(norm))
    # (Some add a millionth to the norm, so that nobody divides by 0: six digits are compared, in float32.)
    seen = {f"shard {place}": (one / scale if scale else one).float() for place, one in enumerate(shards)}
    norm_here = torch.tensor(single / (scale or 1)).float()
    return {"what is handed in": f"{sent} bytes", "the norm that is returned": norm_here} | seen
