"""Check of ``pipeline_step``: a stage on each rank, with gradients and loss of one process, by messages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from checks.engine import Reference, exercise, leaves, refuse, same, watched
from checks.engine.watching import waits
from checks.labs.model_parallelism import order

SIZES = "[len(part) for part in torch.arange(shape[0]).tensor_split(m)]"
OFFICIAL = Reference("model_parallelism", "pipeline_step", {
    **order.shares(" * sizes[k] / shape[0]", " / m"),
    "the samples at the end of the batch are left out: m need not divide their number":
        {SIZES: "[shape[0] // m] * m", ".split(sizes)": ".split(sizes[0])"},
    "the gradients that were there before the step are lost: add to them, as backward does":
        {"    kept, sending": "    stage.zero_grad()\n    kept, sending"},
    "the batch is not cut into micro-batches": {"dist.get_world_size(), micro_batches": "dist.get_world_size(), 1"},
    "all forwards come first: that is GPipe":
        {"schedule_1f1b(rank, p, m)": '[f"{kind}{k}" for kind in "FB" for k in range(m)]'},
    "the loss that comes back is that of the last micro-batch": {"sum(losses)": "losses[-1]"},
})  # fmt: skip
CASES = [
    {"micro_batches": 3, "samples": 6, "dtype": "float32", "dimensions": 2, "gradients_before": False},
    {"micro_batches": 5, "samples": 13, "dtype": "float64", "dimensions": 2, "gradients_before": True},
    {"micro_batches": 2, "samples": 5, "dtype": "float32", "dimensions": 3, "gradients_before": False},
    {"micro_batches": 6, "samples": 8, "dtype": "float32", "dimensions": 2, "gradients_before": False},
    {"micro_batches": 1, "samples": 3, "dtype": "float64", "dimensions": 3, "gradients_before": False},
]


class Stage(nn.Module):
    """A stage that notes its passes, "F0", "B0", and of how many micro-batches inputs and activations are there."""

    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 6), nn.Linear(6, wider)
        self.mark: Callable[[], Any] = int
        self.passes: list[str] = []
        self.there: list[list[StorageWeakRef]] = []
        self.most = [0, 0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, hidden = len(self.there), torch.tanh(self.first(x))  # (which tanh keeps for its backward)
        self.there.append([StorageWeakRef(one.untyped_storage()) for one in (x, hidden)])
        output = torch.tanh(self.second(hidden))
        self._note(f"F{k}")
        output.register_hook(lambda _: self._note(f"B{k}"))
        return output

    def _note(self, what: str) -> None:
        self.passes.append(what)
        self.mark()
        now = [sum(not one.expired() for one in kind) for kind in zip(*self.there, strict=True)]
        self.most = [*map(max, self.most, now)]


@exercise(OFFICIAL, CASES, title="A pipeline on real ranks", difficulty=3, minutes=30, ranks=(2, 3, 4))
def on_real_ranks(case: dict[str, Any], pipeline_step: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``pipeline_step(stage, shape, batch, targets, loss_fn, micro_batches)``, called on all ranks."""
    rank, p, m, samples = dist.get_rank(), dist.get_world_size(), case["micro_batches"], case["samples"]
    dtype, middle = getattr(torch, case["dtype"]), [3] * (case["dimensions"] - 2)
    torch.manual_seed(samples)
    shapes = [(samples, *middle, width) for width in (4, 7, 3, 5, 8)[: p + 1]]
    stages = [Stage(a[-1], b[-1]).to(dtype) for a, b in pairwise(shapes)]
    batch, targets = torch.randn(shapes[0], dtype=dtype), torch.randn(shapes[-1], dtype=dtype)
    stage, schedule = copy.deepcopy(stages[rank]), order.OFFICIAL.functions()[0](rank, p, m)
    loss = nn.functional.mse_loss(nn.Sequential(*stages)(batch), targets)
    loss.backward()
    right: dict[str, Any] = {"what is returned": loss.detach() if rank == p - 1 else None}
    for name, one in stages[rank].named_parameters():
        right[f"the gradient of stage.{name}"] = one.grad + case["gradients_before"]
    for one in stage.parameters() if case["gradients_before"] else ():
        one.grad = torch.ones_like(one)
    right["the passes of the stage"] = schedule
    inputs = {"batch": batch if rank == 0 else None, "targets": targets if rank == p - 1 else None}
    state = {name: one.detach() for name, one in stage.named_parameters()}
    with leaves(stage=state, **inputs), watched(allowed=("send", "recv")) as seen:
        stage.mark = seen.mark
        returned = pipeline_step(stage, shapes[rank], *inputs.values(), nn.functional.mse_loss, m)
    waits(seen.calls)
    tensor = isinstance(returned, torch.Tensor) and returned.numel() == 1
    refuse(rank == p - 1 and not tensor, "the loss does not come back as a tensor with one number")
    result = {"what is returned": returned.detach().reshape(()) if tensor else returned}
    result |= {f"the gradient of stage.{name}": one.grad for name, one in stage.named_parameters()}
    result["the passes of the stage"] = stage.passes
    sent = {peer: [c for c in seen.calls if c["name"] == "send" and c["peer"] == peer] for peer in range(p)}
    for peer, calls in sent.items():
        each = torch.empty(shapes[max(rank, peer)][1:], dtype=dtype).nbytes
        result[f"samples in the messages to rank {peer}"] = sorted(round(call["bytes"] / each, 2) for call in calls)
    if same({label: result[label] for label in right}, right):  # (else it is told what is wrong with them)
        most = min(p - rank, m)
        limits = {"inputs": most + 1 if rank else m, "activations": most}  # (rank 0 has the whole batch)
        for (kind, limit), there in zip(limits.items(), stage.most, strict=True):
            fault = f"there are the {kind} of too many micro-batches: after its backward nothing may hold on to a "
            refuse(there > limit, fault + "micro-batch's input, output, loss or graph", measured=there, expected=limit)
        for peer, kind in ((rank + 1, "F"), (rank - 1, "B")):
            ends = [place + 1 for place, item in enumerate(schedule) if item[0] == kind]
            begun = [call["ready"] for call in sent.get(peer, ())]
            fault = f"a message goes to rank {peer} too late: this rank begins another pass before it sends"
            refuse(len(begun) == m and begun != ends, fault)
    return result
