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

WHOLE, RESULT = "torch.cat([dw, dw.new_zeros(padding)])", "return dx, dshard, None"
REDUCE = f"        dist.reduce_scatter_single(dshard, {WHOLE}, dist.ReduceOp.AVG)\n"
CUT = "        dshard.copy_(whole.chunk(dist.get_world_size())[dist.get_rank()])\n"
PRODUCT = "        return x @ gathered(shard, rows, x.shape[1]).t()\n"
OFFICIAL = Reference("sharded_data_parallel", "sharded_linear", {
    "the gradient of the shard is the sum over the ranks: divide by the world size":
        {REDUCE: REDUCE.replace(", dist.ReduceOp.AVG", "")},
    "the gradient of the shard is cut out of this rank's own: nothing of the others has arrived":
        {REDUCE: f"        whole = {WHOLE}\n{CUT}"},
    "an all-reduce brings every rank the whole gradient, of which it keeps a shard: a reduce-scatter is enough":
        {REDUCE: f"        whole = {WHOLE}\n        dist.all_reduce(whole, dist.ReduceOp.AVG)\n{CUT}"},
    "the gradient that was there before is lost: return the shard's from backward, and autograd adds it up":
        {RESULT: "shard.grad = dshard\n        return dx, None, None"},
    "the shard gets no gradient: backward returns one result for each argument of forward":
        {RESULT: "return dx, None, None"},
    "x gets no gradient: backward returns one result for each argument of forward":
        {RESULT: "return None, dshard, None"},
    "the gradient of the weight is turned round: as the weight, it has a row for each output":
        {"(upstream.t() @ x)": "(x.t() @ upstream)"},
    "the weight is gathered twice in one pass: once is enough":
        {PRODUCT: f"        gathered(shard, rows, x.shape[1])\n{PRODUCT}"},
})  # fmt: skip
CASES = [
    {"type": "float64", "rows": 30, "columns": 25, "batch": 4, "layers": 1, "gradients_before": False, "seed": 1},
    {"type": "float32", "rows": 21, "columns": 38, "batch": 1, "layers": 2, "gradients_before": True, "seed": 2},
    {"type": "float32", "rows": 1, "columns": 37, "batch": 9, "layers": 1, "gradients_before": False, "seed": 3},
]
HELD = {
    "between forward and backward": "the gathered weight is still held: free it, and gather it again",
    "after backward": "the gathered weight, or its whole gradient, is still held: free it",
}


@exercise(OFFICIAL, CASES, title="A linear layer that frees its weight", difficulty=3, minutes=35, ranks=(3, 2, 4))
def sharded_linear(case: dict[str, Any], sharded_linear: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``sharded_linear(x, shard, rows)``, forward and backward."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    same, mine = (torch.Generator().manual_seed(case["seed"] + n) for n in (0, 10 + rank))
    kind = {"dtype": getattr(torch, case["type"])}
    seen: dict[str, Any] = {}
    made, there, whole = [], [], 0
    shapes = [(case["rows"], case["columns"]), (case["columns"], case["rows"])][: case["layers"]]
    for rows, columns in shapes:
        weight = torch.randn(rows, columns, generator=same, **kind)
        shard = nn.Parameter(layers.joined([weight], ranks).chunk(ranks)[rank].clone())
        shard.grad = torch.full_like(shard, 0.5) if case["gradients_before"] else None
        x = torch.randn(case["batch"], columns, generator=mine, **kind).requires_grad_()
        upstream = torch.randn(rows, case["batch"], generator=mine, **kind).t()
        made.append((x, shard, rows, upstream))
        there += [one for one in (x, shard, shard.grad, upstream) if one is not None]
        whole = max(whole, shard.nbytes * ranks)
    living, outputs = memory.living(*there), []

    def free(when: str, *own: torch.Tensor) -> None:
        held = living.now(*own, most=whole // 4) + memory.beside(*own)
        words = f"{when}, {HELD[when]}"
        refuse(held >= whole // 2, words, measured=f"{held:,} bytes", expected=f"less than {whole // 2:,}")

    words = "All ranks gather in both passes, and reduce in backward, in the same order"
    for n, (x, shard, rows, upstream) in enumerate(made):
        with leaves(x=x, shard=shard), explained(words), watched() as wire, living:
            y = sharded_linear(x, shard, rows)
        refuse(not isinstance(y, torch.Tensor), "the result is no tensor", measured=kind_of(y))
        refuse(not y.requires_grad, "the output has lost its way back: x and shard will get no gradient")
        outputs.append(y)
        seen |= _named(n, {"the output": y.detach().clone(), "forward": _calls(wire)})
        if y.shape != upstream.shape:
            return seen
        free("between forward and backward", *outputs)
    y = None
    for n, (x, shard, _, upstream) in enumerate(made):
        given = {"x": x.detach(), "shard": shard.detach(), "the gradient that comes in": upstream}
        with leaves(**given), explained(words), watched() as wire, living:
            outputs.pop(0).backward(upstream)
        gradients = {"the gradient of x": x.grad, "the gradient of the shard": shard.grad}
        copies = {name: None if one is None else one.clone() for name, one in gradients.items()}
        seen |= _named(n, copies | {"backward": _calls(wire)})
        own = [one for x, shard, *_ in made for one in (x.grad, shard.grad) if one is not None]
        free("after backward", *own, *outputs)
    return seen


def _named(layer: int, things: dict[str, Any]) -> dict[str, Any]:
    return {name + " of a second layer" * layer: one for name, one in things.items()}


def _calls(wire: Any) -> str:
    calls = sorted(f"{call['name']} of {call['bytes']} bytes" for call in wire.calls)
    return " and ".join(calls) or "nothing is sent"
