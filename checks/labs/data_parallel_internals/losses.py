"""Check of ``data_parallel_loss``: the loss of each share where its logits are, and what every GPU holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import simgpu
from checks.engine import Reference, exercise, judge, refuse
from checks.labs.data_parallel_internals import steps
from checks.labs.data_parallel_internals.models import cluster
from checks.points import passed

MEAN = {', reduction="sum")': ")"}
SUM = "sum(loss.to(devices[0]) for loss in losses) / len(batch)"
ENTROPY = 'F.cross_entropy(functional_call(model, replica, part), answer, reduction="sum")'
OFFICIAL = Reference("data_parallel_internals", "data_parallel_loss", {
    "only the first GPU works: compute each share's loss on its GPU":
        {"parts, answers = ": "return F.cross_entropy(model(batch), targets)\n    parts, answers = "},
    "every GPU's mean counts the same, so rows on a GPU with fewer rows count more: weight it with its number of rows":
        MEAN | {SUM: SUM.replace("batch", "losses")},
    "it is the sum over all rows: divide by their number": {SUM: SUM.replace(" / len(batch)", "")},
    "it is not finite where a probability is too small for its type: F.cross_entropy works with logarithms from the "
    "start":
        {ENTROPY: "-functional_call(model, replica, part).softmax(1).log().gather(1, answer[:, None]).sum()"},
    "no gradient comes back to the batch: do not detach it": {"(batch, devices), sc": "(batch.detach(), devices), sc"},
    **steps.COMMON,
})  # fmt: skip
CASES = [
    {"devices": [0, 1, 2, 3], "rows": 8},
    {"devices": [2, 0, 1], "rows": 7, "batch_learns": True},
    {"devices": [3, 0, 2, 1], "rows": 18, "class_0_has_logits_lower_by": 200},
    {"devices": [4, 1, 3, 0, 2], "rows": 2},
    {"devices": [1], "rows": 3},
]
PARTS = {"loss and gradients": 2, "memory": 1}
MANY = [
    {"devices": [0, 1, 2, 3], "rows": 8192, "classes": 50_000},  # as the lab shows
    {"devices": [2, 0, 1], "rows": 2101, "classes": 30_000},
]


def play(case: dict[str, Any], data_parallel_loss: Callable[..., Any]) -> dict[str, Any]:
    return steps.play(case | {"of": "float32"}, data_parallel_loss, loss=True)


def hold(case: dict[str, Any], data_parallel_loss: Callable[..., Any]) -> dict[str, Any]:
    """A step with many classes, of which there are only shapes."""
    devices = cluster(case["devices"], numbers=False)
    with devices[0]:
        model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, case["classes"]))
        batch, targets = torch.empty(case["rows"], 256), torch.zeros(case["rows"], dtype=torch.int64)
    with simgpu.profile() as profile:
        data_parallel_loss(model, batch, targets, devices).backward()
    parameters, share = sum(weight.nbytes for weight in model.parameters()), -(-case["rows"] // len(devices))
    # Parameters, gradients and their sum; a loss in single steps needs 5 times a share's logits. (2.4 GB in the lab.)
    most = 3 * parameters + 5.5 * share * case["classes"] * 4
    for device in devices:
        peak = profile.peak_memory(device.index)
        fault = f"GPU {device.index} holds too much at its peak: what has a number for each row and class stays split"
        refuse(peak > most, fault, measured=f"{peak / 1e9:.2f} GB", expected=f"at most {most / 1e9:.2f}")
    return {}


@exercise(OFFICIAL, title="Keep the loss in the replicas", difficulty=3, minutes=20, parts=PARTS)
def loss(data_parallel_loss: Any) -> dict[str, Any]:
    """Judge ``data_parallel_loss(model, batch, targets, devices)``: the mean cross-entropy, on the first GPU."""
    played = judge(OFFICIAL, play, CASES, data_parallel_loss)
    passed("loss and gradients")
    return {"cases": played["cases"] + judge(OFFICIAL, hold, MANY, data_parallel_loss)["cases"]}
