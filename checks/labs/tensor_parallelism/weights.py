"""Checks of layers whose weights are cut: two linear ones, one behind the other, and attention by heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

from checks.engine import Reference, exercise, leaves, memory, refuse, watched
from checks.labs.tensor_parallelism import passes

COLUMNS, ROWS = "CopyToRanks.apply(x) @ weight.t() + bias", "SumOverRanks.apply(part @ weight.t()) + bias"
LINEAR = Reference("tensor_parallelism", "column_linear row_linear", {
    "the gradient of x comes from this rank's columns alone: all ranks have used x, so it is the sum of theirs":
        passes.NO_F,
    "the result of row_linear is this rank's summand: nothing of the others has arrived": passes.NO_G,
    "the bias comes once from each rank: add it after the sum": {ROWS: "SumOverRanks.apply(part @ weight.t() + bias)"},
    "the gradient of row_linear's result is summed over the ranks, and all have the same one: it is passed on as it is":
        passes.SUM_BACK_G,
    "column_linear sums its input over the ranks, which all have the same: forward, x is passed on as it is":
        {COLUMNS: COLUMNS.replace("CopyToRanks", "SumOverRanks")},
    "row_linear gives the mean over the ranks: it is the sum": passes.MEAN_G,
    "the gradient of x is the mean over the ranks: it is the sum": passes.MEAN_F,
    "column_linear leaves out its bias": {COLUMNS: COLUMNS.replace(" + bias", "")},
    "row_linear leaves out its bias": {ROWS: ROWS.replace(" + bias", "")},
})  # fmt: skip
ROWS_OF_X = [
    {"rows": [2, 3], "type": "float64", "seed": 1},
    {"rows": [4], "type": "float32", "seed": 2},
    {"rows": [3, 1, 2], "type": "float64", "seed": 3},
]


@exercise(LINEAR, ROWS_OF_X, title="Columns, then rows", difficulty=2, minutes=30, ranks=(3, 2))
def linear_layers(
    case: dict[str, Any], column_linear: Callable[..., Any], row_linear: Callable[..., Any]
) -> dict[str, Any]:
    """Judge ``column_linear(x, weight, bias)`` and ``row_linear(part, weight, bias)``, one behind the other."""
    rank, dtype = dist.get_rank(), getattr(torch, case["type"])
    torch.manual_seed(case["seed"])
    inputs, hidden, outputs = torch.randint(2, 6, (3,)).tolist()
    torch.manual_seed(1000 * case["seed"] + rank)  # of this rank alone
    mine = hidden + rank % 3
    shapes: Any = (mine, inputs), (mine,), (outputs, mine)
    weight, bias, last_weight = (Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes)
    torch.manual_seed(case["seed"])  # as on all ranks
    last_bias = Parameter(torch.randn(outputs, dtype=dtype))
    rows = {"x": case["rows"], "another x": [4]}
    x = {name: torch.randn(*shape, inputs, dtype=dtype).requires_grad_() for name, shape in rows.items()}
    columns = []

    def network(x: torch.Tensor) -> torch.Tensor:
        part = column_linear(x, weight, bias)
        part = passes.tensor(part, (*x.shape[:-1], mine), "the result of column_linear")
        columns.append(part.detach().clone())
        y = row_linear(torch.tanh(part), last_weight, last_bias)
        return passes.tensor(y, (*x.shape[:-1], outputs), "the result of row_linear")

    weights = {"column_linear's weight": weight, "column_linear's bias": bias}
    weights |= {"row_linear's weight": last_weight, "row_linear's bias": last_bias}
    seen = passes.train(network, x, weights)
    return {"the result of column_linear": columns[0], "its later results": columns[1:]} | seen


MINE, TOGETHER = "torch.cat([part.chunk(ranks)[rank] for part in qkv.chunk(3)])", "CopyToRanks.apply(x) @ self.qkv.t()"
FOUND, HEADS = "found.transpose(1, 2).flatten(2)", "part.unflatten(2, (self.heads, -1)).transpose(1, 2)"
ATTENTION = Reference("tensor_parallelism", "ParallelAttention", {
    "`qkv` is cut straight through queries, keys and values: a rank then has no whole head of its own":
        {MINE: "qkv.chunk(ranks)[rank].clone()"},
    "a rank has the heads of another one: rank r keeps those from r · h/N on": {")[rank]": ")[ranks - 1 - rank]"},
    "the gradient of x comes from this rank's heads alone: all ranks have used x, so it is the sum of theirs":
        passes.NO_F,
    "the result is this rank's summand: nothing of the others has arrived": passes.NO_G,
    "the gradient of the result is summed over the ranks, and all have the same one: it is passed on as it is":
        passes.SUM_BACK_G,
    "the result is the mean over the ranks: it is the sum": passes.MEAN_G,
    "the gradient of x is the mean over the ranks: it is the sum": passes.MEAN_F,
    "x is summed over the ranks, which all have the same: forward, it is passed on as it is":
        {"CopyToRanks.apply(x)": "SumOverRanks.apply(x)"},
    "the backward pass sums up once for queries, keys and values each: once for x is enough":
        {TOGETHER: "torch.cat([CopyToRanks.apply(x) @ part.t() for part in self.qkv.chunk(3)], 2)"},
    "a token collects from those behind it: attention here is causal": {"is_causal=True": "is_causal=False"},
    "a rank's heads are one large head: cut queries, keys and values into heads": {"(self.heads, -1)": "(1, -1)"},
    "a head's numbers are taken from all over the rows: the rows of one head lie together":
        {HEADS: "part.unflatten(2, (-1, self.heads)).permute(0, 3, 1, 2)"},
    "heads and tokens are mixed up on the way back: first transpose them, then flatten":
        {FOUND: "found.reshape(*x.shape[:2], -1)"},
    "scores are not divided by the root of a head's size": {"is_causal=True": "is_causal=True, scale=1"},
})  # fmt: skip
HEADS_OF_RANKS = [
    {"type": "float64", "heads_on_each_rank": 2, "seed": 1},
    {"type": "float32", "heads_on_each_rank": 3, "seed": 2},
    {"type": "float64", "heads_on_each_rank": 1, "seed": 3},
]


@exercise(ATTENTION, HEADS_OF_RANKS, title="Attention by heads", difficulty=2, minutes=30, ranks=(2, 3))
def parallel_attention(case: dict[str, Any], ParallelAttention: Callable[..., Any]) -> dict[str, Any]:
    """Judge the class ``ParallelAttention(qkv, out, heads)``, which is called with x."""
    ranks, dtype = dist.get_world_size(), getattr(torch, case["type"])
    heads = ranks * case["heads_on_each_rank"]
    torch.manual_seed(case["seed"])
    batch, length, size = torch.randint(2, 5, (3,)).tolist()
    width = heads * size
    whole = {"qkv": torch.randn(3 * width, width, dtype=dtype), "out": torch.randn(width, width, dtype=dtype)}
    with leaves(**whole), watched() as wire:
        attention = ParallelAttention(*whole.values(), heads)
        ParallelAttention(*whole.values(), width)  # as another layer, of other heads
    parameters = {name: getattr(attention, name, None) for name in whole}
    for name, shape in (("qkv", [3 * width // ranks, width]), ("out", [width, width // ranks])):
        one = parameters[name]
        fault = f"the object has no nn.Parameter called `{name}`, this rank's part of the weight"
        refuse(not isinstance(one, Parameter), fault)
        fault = f"`{name}` has another shape than what the heads of this rank need"
        refuse(list(one.shape) != shape, fault, measured=list(one.shape), expected=shape)
    storages = {name: StorageWeakRef(one.untyped_storage()) for name, one in whole.items()}
    del whole
    for name, storage in storages.items():
        fault = f"the object keeps the whole `{name}`: a view keeps all of it in memory, so clone() your part"
        refuse(memory.is_kept(storage), fault)
    seen: dict[str, Any] = {f"`{name}`, this rank's part": one.detach().clone() for name, one in parameters.items()}
    sizes = {"x": batch, "another x": 2}
    x = {name: torch.randn(n, length, width, dtype=dtype).requires_grad_() for name, n in sizes.items()}
    seen |= passes.train(lambda x: passes.tensor(attention(x), x.shape), x, parameters)
    return seen | {"what the constructor hands in": passes.handed_in(wire.calls)}
