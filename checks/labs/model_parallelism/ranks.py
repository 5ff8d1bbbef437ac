"""Check of ``pipeline_step``: a stage on each rank, with gradients and loss of one process, by messages."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from checks.engine import Reference, exercise, leaves, refuse, same, watched
from checks.engine.watching import waits
from checks.labs.model_parallelism.order import OFFICIAL as ORDER

SHARE, SIZES = " * sizes[k] / shape[0]", "[len(part) for part in torch.arange(shape[0]).tensor_split(m)]"
LIST = "schedule_1f1b(rank, p, m)"
OFFICIAL = Reference("model_parallelism", "pipeline_step", {
    "each micro-batch counts fully: the loss is a mean, so weight it by the micro-batch's share of the samples":
        {SHARE: ""},
    "every micro-batch has the same weight, but they are not of the same size: weight each by its share of the samples":
        {SHARE: " / m"},
    "the samples at the end of the batch are left out: m need not divide their number":
        {SIZES: "[shape[0] // m] * m", ".split(sizes)": ".split(sizes[0])"},
    "the last micro-batch has all samples that are left over: sizes differ by at most one":
        {SIZES: "[shape[0] // m] * (m - 1) + [shape[0] - shape[0] // m * (m - 1)]"},
    "the gradients that were there before the step are lost: add to them, as backward does":
        {"    kept, sending": "    stage.zero_grad()\n    kept, sending"},
    "the batch is not cut into micro-batches": {"dist.get_world_size(), micro_batches": "dist.get_world_size(), 1"},
    "all forwards come first: that is GPipe": {LIST: '[f"{kind}{k}" for kind in "FB" for k in range(m)]'},
    "one micro-batch follows the other: all other ranks have nothing to do":
        {LIST: '[f"{kind}{k}" for k in range(m) for kind in "FB"]'},
    "every rank has the warm-up of the first one": {LIST: "schedule_1f1b(0, p, m)"},
    "the loss that comes back is that of the last micro-batch": {"sum(losses)": "losses[-1]"},
    "a rank that has no loss does not return None": {"sum(losses) if rank == last else None": "sum(losses)"},
})  # fmt: skip
CASES = [
    {"micro_batches": 3, "samples": 6, "dtype": "float32", "dimensions": 2, "gradients_before": False},
    {"micro_batches": 5, "samples": 13, "dtype": "float64", "dimensions": 2, "gradients_before": True},
    {"micro_batches": 2, "samples": 5, "dtype": "float32", "dimensions": 3, "gradients_before": False},
    {"micro_batches": 6, "samples": 8, "dtype": "float32", "dimensions": 2, "gradients_before": False},
    {"micro_batches": 1, "samples": 3, "dtype": "float64", "dimensions": 3, "gradients_before": False},
]


class Stage(nn.Module):
    """A stage that notes its passes, "F0", "B0", and of how many micro-batches something is there at the same time."""

    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 6), nn.Linear(6, wider)
        self.begin(lambda: None)

    def begin(self, mark: Callable[[], None]) -> None:
        self.mark, self.passes = mark, []  # type: ignore[var-annotated]
        self.inputs: list[StorageWeakRef] = []
        self.saved: list[StorageWeakRef] = []
        self.most_inputs = self.most_saved = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, hidden = len(self.saved), torch.tanh(self.first(x))
        self.inputs.append(StorageWeakRef(x.untyped_storage()))
        self.saved.append(StorageWeakRef(hidden.untyped_storage()))  # (tanh keeps it for its backward)
        output = torch.tanh(self.second(hidden))
        self._note(f"F{k}")
        output.register_hook(lambda _: self._note(f"B{k}"))
        return output

    def _note(self, what: str) -> None:
        self.passes.append(what)
        self.mark()
        self.most_inputs = max(self.most_inputs, sum(not one.expired() for one in self.inputs))
        self.most_saved = max(self.most_saved, sum(not one.expired() for one in self.saved))


@exercise(OFFICIAL, CASES, title="A pipeline on real ranks", difficulty=3, minutes=30, ranks=(2, 3, 4))
def on_real_ranks(case: dict[str, Any], pipeline_step: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``pipeline_step(stage, shape, batch, targets, loss_fn, micro_batches)``, called on all ranks."""
    rank, p, m, samples = dist.get_rank(), dist.get_world_size(), case["micro_batches"], case["samples"]
    dtype, middle = getattr(torch, case["dtype"]), [3] * (case["dimensions"] - 2)
    torch.manual_seed(samples)
    shapes = [(samples, *middle, width) for width in (4, 7, 3, 5, 8)[: p + 1]]
    stages = [Stage(a[-1], b[-1]).to(dtype) for a, b in pairwise(shapes)]
    batch, targets = torch.randn(shapes[0], dtype=dtype), torch.randn(shapes[-1], dtype=dtype)
    loss = nn.functional.mse_loss(nn.Sequential(*stages)(batch), targets)
    loss.backward()
    stage, schedule = stages[rank], ORDER.functions()[0](rank, p, m)
    right: dict[str, Any] = {"what is returned": loss.detach() if rank == p - 1 else None}
    for name, one in stage.named_parameters():
        right[f"the gradient of stage.{name}"] = one.grad + case["gradients_before"]
        one.grad = torch.ones_like(one) if case["gradients_before"] else None
    right["the passes of the stage"] = schedule
    inputs = {"batch": batch if rank == 0 else None, "targets": targets if rank == p - 1 else None}
    state = {name: one.detach() for name, one in stage.named_parameters()}
    with leaves(stage=state, **inputs), watched(allowed=("send", "recv")) as seen:
        stage.begin(seen.mark)
        returned = pipeline_step(stage, shapes[rank], *inputs.values(), nn.functional.mse_loss, m)
    waits(seen.calls)
    forwards = sum(item[0] == "F" for item in stage.passes)
    refuse(forwards > m, "the stage runs forward more than once for a micro-batch", measured=forwards, expected=m)
    tensor = isinstance(returned, torch.Tensor) and returned.numel() == 1
    refuse(rank == p - 1 and not tensor, "the loss does not come back as a tensor with one number")
    result = {"what is returned": returned.detach().reshape(()) if tensor else returned}
    result |= {f"the gradient of stage.{name}": one.grad for name, one in stage.named_parameters()}
    result["the passes of the stage"] = stage.passes
    sent = {peer: [c for c in seen.calls if c["name"] == "send" and c["peer"] == peer] for peer in range(p)}
    for peer, calls in sent.items():
        words = f"more than one message for each micro-batch goes to rank {peer}"
        refuse(len(calls) > m, words, measured=len(calls), expected=m)
    if same(result, right):  # (else it is told what is wrong with them)
        most = min(p - rank, m)
        words = "there are the activations of too many micro-batches: does something keep a graph after its backward?"
        refuse(stage.most_saved > most, words, measured=stage.most_saved, expected=most)
        words = "there are the inputs of too many micro-batches: after its backward nothing may hold on to a "
        words += "micro-batch's input, output or loss"
        refuse(rank and stage.most_inputs > most + 1, words, measured=stage.most_inputs, expected=f"at most {most + 1}")
        for peer, kind in ((rank + 1, "F"), (rank - 1, "B")):
            ends = [place + 1 for place, item in enumerate(schedule) if item[0] == kind]
            begun = [call["ready"] for call in sent.get(peer, ())]
            words = f"a message goes to rank {peer} too late: this rank begins another pass before it sends"
            refuse(begun and begun != ends, words)
    for peer, calls in sent.items():
        each = torch.empty(shapes[max(rank, peer)][1:], dtype=dtype).nbytes
        result[f"samples in the messages to rank {peer}"] = sorted(round(call["bytes"] / each, 2) for call in calls)
    return result
