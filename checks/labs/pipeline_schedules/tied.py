"""Check of ``tied_step``: gradients of one process on every rank, and one exchange of the shared matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checks.engine import Reference, exercise, leaves, refuse, watched

SUM = "        dist.all_reduce(table.grad, group=ends)"
OFFICIAL = Reference("pipeline_schedules", "tied_step", {
    "the gradients of both copies are not added up: each end has its own half": {SUM: "        pass"},
    "the two gradients of the table are averaged, and one process adds them up":
        {SUM: "        dist.all_reduce(table.grad, group=ends)\n        table.grad /= ends.size()"},
    "only one end gets the sum of both gradients": {SUM: "        dist.reduce(table.grad, 0, group=ends)"},
    "the losses of the micro-batches are added up: their mean is that of the batch": {" / micro_batches": ""},
    "the returned loss is that of the last micro-batch": {"(0 if total is None else total)": "0"},
})  # fmt: skip
CASES = [{"micro_batches": 1, "seed": 1}, {"micro_batches": 3, "seed": 2}, {"micro_batches": 4, "seed": 3}]
_groups: dict[str, Any] = {}


@exercise(OFFICIAL, CASES, title="One matrix at both ends", difficulty=2, minutes=25, ranks=(3, 2, 1, 4))
def tied_step(case: dict[str, Any], tied_step: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``tied_step(table, block, tokens, targets, micro_batches, ends)``."""
    rank, last, m = dist.get_rank(), dist.get_world_size() - 1, case["micro_batches"]
    if not _groups:
        _groups["ends"] = dist.new_group(sorted({0, last}))
    torch.manual_seed(case["seed"])
    words, width, length = torch.randint(4, 9, (3,)).tolist()
    tokens, targets = torch.randint(words, (2, 2 * m, length))
    table = torch.randn(words, width, dtype=torch.float64, requires_grad=True)
    for one in range(rank + 1):
        torch.manual_seed(one)
        block = nn.Sequential(nn.Linear(width, width), nn.Tanh()).double()
    with leaves(tokens=tokens, targets=targets, table=table.detach()), watched() as seen:
        loss = tied_step(table, block, tokens, targets, m, _groups["ends"])
    activation, size = 2 * length * width * 8, words * width * 8
    expected = m * activation * ((rank < last) + (rank > 0)) + size * (rank in (0, last))
    words_ = "hands in more bytes than one activation and one gradient for each micro-batch"
    words_ += ", and the table's gradient once in a step" if rank in (0, last) else ", and no table"
    refuse(seen.sent() > expected, f"rank {rank} {words_}", measured=seen.sent(), expected=expected)
    for name, tensor in (("the loss", loss), ("the gradient of the table", table.grad)):
        there = rank == last if name == "the loss" else rank in (0, last)
        refuse(there and tensor is None, f"{name} is missing on rank {rank}")
        refuse(not there and tensor is not None, f"rank {rank} has {name}, and only {_who(name)} should")
    result = {"the gradient of the table": table.grad, "the loss": None if loss is None else float(loss)}
    return result | {f"the gradient of block.{name}": one.grad for name, one in block.named_parameters()}


def _who(name: str) -> str:
    return "the last rank" if name == "the loss" else "the first and the last rank"
