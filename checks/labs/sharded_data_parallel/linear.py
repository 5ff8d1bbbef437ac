"""Check of ``sharded_linear``: a weight that is gathered for each pass, and freed in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checks.engine import Reference, exercise, leaves, memory, refuse, watched
from checks.engine.plain import kind_of
from checks.engine.watching import explained
from checks.labs.sharded_data_parallel import layers

OFFICIAL = Reference("sharded_data_parallel", "sharded_linear", {
    "the gradient of the shard is the sum over the ranks: divide by the world size":
        {", dist.ReduceOp.AVG": ""},
    "the gradient that was there before is lost: return the shard's from backward, and autograd adds it up":
        {"return dx, dshard, None": "shard.grad = dshard\n        return dx, None, None"},
    "the gradient of the weight is turned round: as the weight, it has a row for each output":
        {"(upstream.t() @ x)": "(x.t() @ upstream)"},
})  # fmt: skip
CASES = [
    {"type": "float64", "rows": 30, "columns": 25, "batch": 4, "layers": 1, "gradients_before": False, "seed": 1},
    {"type": "float32", "rows": 21, "columns": 38, "batch": 1, "layers": 2, "gradients_before": True, "seed": 2},
    {"type": "float32", "rows": 1, "columns": 37, "batch": 9, "layers": 1, "gradients_before": False, "seed": 3},
]
OF = "", " of a second layer"
HELD = {
    "between forward and backward": "the gathered weight is still held: free it, and gather it again",
    "after backward": "the gathered weight, or its whole gradient, is still held: free it",
}


@exercise(OFFICIAL, CASES, title="A linear layer that frees its weight", difficulty=3, minutes=35, ranks=(3, 2, 4))
def sharded_linear(case: dict[str, Any], sharded_linear: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``sharded_linear(x, shard, rows)``, forward and backward."""
    rank, ranks, seen = dist.get_rank(), dist.get_world_size(), dict[str, Any]()
    made: list[tuple[torch.Tensor, ...]] = []
    outputs: list[torch.Tensor] = []
    dtype, shape = getattr(torch, case["type"]), (case["rows"], case["columns"])
    for rows, columns in (shape, shape[::-1])[: case["layers"]]:
        torch.manual_seed(case["seed"])  # as on all ranks
        weight = torch.randn(rows, columns, dtype=dtype)
        torch.manual_seed(10 * case["seed"] + rank)  # of this rank alone
        shard = nn.Parameter(layers.joined([weight], ranks).chunk(ranks)[rank].clone())
        shard.grad = torch.full_like(shard, 0.5) if case["gradients_before"] else None
        x = torch.randn(case["batch"], columns, dtype=dtype).requires_grad_()
        made.append((x, shard, torch.randn(rows, case["batch"], dtype=dtype).t()))
    before = [one for x, shard, upstream in made for one in (x, shard, shard.grad, upstream) if one is not None]
    living, whole = memory.living(*before), max(shard.nbytes for _, shard, _ in made) * ranks

    def free(when: str, *own: torch.Tensor) -> None:
        held = living.now(*own, most=whole // 4) + memory.beside(*own)
        fault = f"{when}, {HELD[when]}"
        refuse(held >= whole // 2, fault, measured=f"{held:,} bytes", expected=f"less than {whole // 2:,}")

    fault = "All ranks gather in both passes, and reduce in backward, in the same order"
    for n, (x, shard, upstream) in enumerate(made):
        with leaves(x=x, shard=shard), explained(fault), watched() as wire, living:
            y = sharded_linear(x, shard, upstream.shape[1])
        refuse(not isinstance(y, torch.Tensor), "the result is no tensor", measured=kind_of(y))
        refuse(not y.requires_grad, "the output has lost its way back: x and shard will get no gradient")
        outputs.append(y)
        seen |= {f"what is handed in, forward{OF[n]}": layers.handed_in(wire), f"the output{OF[n]}": y.detach().clone()}
        if y.shape != upstream.shape:
            return seen
        free("between forward and backward", *outputs)
    y = None
    for n, (x, shard, upstream) in enumerate(made):
        given = {"x": x.detach(), "shard": shard.detach(), "the gradient that comes in": upstream}
        with leaves(**given), explained(fault), watched() as wire, living:
            outputs.pop(0).backward(upstream)
        seen[f"what is handed in, backward{OF[n]}"] = layers.handed_in(wire)
        for name, one in (("x", x.grad), ("the shard", shard.grad)):
            seen[f"the gradient of {name}{OF[n]}"] = None if one is None else one.clone()
        own = [one for x, shard, _ in made for one in (x.grad, shard.grad) if one is not None]
        free("after backward", *own, *outputs)
    return seen
