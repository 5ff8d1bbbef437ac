"""Check of ``data_parallel_forward``: all four steps, and the GPUs work at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise
from checks.labs.data_parallel_internals import steps

PARTS = "parts = scatter_batch(batch, devices)"
OUTPUTS = "[output.to(devices[0]) for output in outputs]"
OFFICIAL = Reference("data_parallel_internals", "data_parallel_forward", {
    "only the first GPU works: run each replica on its part": {PARTS: "return model(batch)"},
    "the rows of the output are in another order than those of the batch: neighbours stay together":
        {"batch.chunk(len(devices))": "[batch[i :: len(devices)] for i in range(min(len(devices), len(batch)))]"},
    "only the first output remembers its replica: gather them without detach or no_grad":
        {OUTPUTS: "[outputs[0], *(output.detach().to(devices[0]) for output in outputs[1:])]"},
    "no gradient comes back to the batch: do not detach it": {PARTS: PARTS.replace("(batch,", "(batch.detach(),")},
    **steps.COMMON,
})  # fmt: skip
CASES = [
    {"devices": [0, 1, 2, 3], "rows": 8, "of": "float64"},
    {"devices": [2, 0, 1], "rows": 8, "of": "float32", "batch_learns": True},
    {"devices": [3, 0, 2, 1], "rows": 2, "of": "float64"},
    {"devices": [1], "rows": 3, "of": "float64"},
    {"devices": [4, 1, 3, 0, 2], "rows": 10, "of": "float64", "statistics": True},  # (all shares are the same)
    {"devices": [1, 0], "rows": 5, "of": "float32", "statistics": True, "eval": True},
]


@exercise(OFFICIAL, CASES, title="Run the replicas, gather the outputs", difficulty=2, minutes=15)
def forward(case: dict[str, Any], data_parallel_forward: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``data_parallel_forward(model, batch, devices)``, which returns the output on the first GPU."""
    return steps.play(case, data_parallel_forward)
