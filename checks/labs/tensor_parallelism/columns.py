"""Check of ``column_linear`` and ``row_linear``, one behind the other: numbers and gradients of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Parameter

from checks.engine import Reference, exercise
from checks.labs.tensor_parallelism import passes

COLUMNS, ROWS = "CopyToRanks.apply(x) @ weight.t() + bias", "SumOverRanks.apply(part @ weight.t()) + bias"
OFFICIAL = Reference("tensor_parallelism", "column_linear row_linear", {
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
    "row_linear computes in float32, also where its tensors are in float64":
        {ROWS: "SumOverRanks.apply(part.float() @ weight.float().t()).to(part.dtype) + bias"},
    "the gradient of row_linear's bias is divided by the ranks: each of them has all of it":
        {ROWS: ROWS.replace("bias", "bias / (n := dist.get_world_size()) + (bias * (n - 1) / n).detach()")},
})  # fmt: skip
CASES = [
    {"rows": [2, 3], "type": "float64", "seed": 1},
    {"rows": [4], "type": "float32", "seed": 2},
    {"rows": [3, 1, 2], "type": "float64", "seed": 3},
]


@exercise(OFFICIAL, CASES, title="Columns, then rows", difficulty=2, minutes=30, ranks=(3, 2))
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
