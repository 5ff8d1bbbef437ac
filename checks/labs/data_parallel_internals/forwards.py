"""Check of ``data_parallel_forward``: all four steps, and the GPUs work at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks.engine import Reference
from checks.labs.data_parallel_internals import steps

PARTS = "parts = scatter_batch(batch, devices)"
OUTPUTS = "[output.to(devices[0]) for output in outputs]"
OFFICIAL = Reference("data_parallel_internals", "data_parallel_forward", {
    "only the first GPU works: run each replica on its part": {PARTS: "return model(batch)"},
    "the rows of the output are in another order than those of the batch: neighbours stay together":
        {"batch.chunk(len(devices))": "[batch[i :: len(devices)] for i in range(min(len(devices), len(batch)))]"},
    "rows are lost where they do not divide evenly":
        {"batch.chunk(len(devices))": "batch.split(max(1, len(batch) // len(devices)))[: len(devices)]"},
    "only the first output remembers its replica: gather them without detach or no_grad":
        {OUTPUTS: "[outputs[0], *(output.detach().to(devices[0]) for output in outputs[1:])]"},
    "no gradient comes back to the batch: do not detach it": {PARTS: PARTS.replace("(batch,", "(batch.detach(),")},
    "the model's statistics are lost: its first replica holds the model's own buffers":
        {"tensor.to(device) for": "tensor.to(device, copy=name not in dict(model.named_parameters())) for"},
    "the whole batch goes to every GPU: split first, then move":
        {"[part.to(devices[index]) for": "[batch.to(devices[index]).chunk(len(devices))[index] for"},
    **steps.COMMON,
})  # fmt: skip
CASES = [
    {"devices": [0, 1, 2, 3], "rows": 8, "of": "float64", "steps": 2},
    {"devices": [2, 0, 1], "rows": 8, "of": "float32", "batch_learns": True},
    {"devices": [3, 0, 2, 1], "rows": 2, "of": "float64"},
    {"devices": [1], "rows": 3, "of": "float64"},
    {"devices": [4, 1, 3, 0, 2], "rows": 10, "of": "float64", "statistics": True},  # (all shares are the same)
    {"devices": [1, 0], "rows": 5, "of": "float32", "statistics": True, "eval": "and no_grad"},
]


def play(case: dict[str, Any], data_parallel_forward: Callable[..., Any]) -> dict[str, Any]:
    return steps.play(case, data_parallel_forward)
