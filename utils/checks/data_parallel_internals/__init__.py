"""The exercises of this lab: data parallelism written out of scatter, replicate, apply and gather."""

from __future__ import annotations

from typing import Any

from utils.checks.data_parallel_internals.forward_verdicts import (
    judge_bytes,
    judge_output,
    judge_step_gradients,
    judge_together,
    judge_where,
)
from utils.checks.data_parallel_internals.forwards import batches_seen, together, two_steps
from utils.checks.data_parallel_internals.gpus import total_bytes
from utils.checks.data_parallel_internals.losses import (
    MOST_ON_GPU_0,
    judge_gathered,
    judge_loss,
    judge_loss_gradients,
    loss_and_gradients,
    peak_of_gpu_0,
)
from utils.checks.data_parallel_internals.replicas import judge_copies, judge_replicas, judge_use, replicated
from utils.checks.data_parallel_internals.scattering import BATCHES, all_batches, judge_parts, judge_route
from utils.checks.framework import exercise
from utils.checks.points import passed
from utils.checks.sandbox import run, run_cases
from utils.checks.verdicts import Wrong

SECONDS = 60  # for each process; on a busy machine importing what simulated GPUs need takes some


@exercise(title="Scatter the batch", difficulty=1, minutes=10)
def scatter(scatter_batch: Any) -> dict[str, Any]:
    """Judge ``scatter_batch(batch, devices)``, which returns a list of parts, each on its GPU."""
    found = run(all_batches, scatter_batch, timeout=SECONDS)
    for (rows, gpus, start), one in zip(BATCHES, found, strict=True):
        judge_parts(rows, gpus, one)
        judge_route(rows, gpus, start, one)
    return {"batches": len(BATCHES), "each row moves": "once, straight to its GPU"}


GPUS = (2, 3, 4)


@exercise(title="Replicate the model", difficulty=2, minutes=15)
def replicate(replicate_model: Any) -> dict[str, Any]:
    """Judge ``replicate_model(model, devices)``, which returns for each GPU a dict of names and tensors."""
    for gpus, found in zip(
        GPUS, run_cases(replicated, [(replicate_model, gpus) for gpus in GPUS], timeout=SECONDS), strict=True
    ):
        judge_replicas(gpus, found)
        judge_copies(gpus, found)
        judge_use(gpus, found["use"])
    return {
        "GPUs": "2, 3, 4",
        "bytes moved on 4 GPUs": total_bytes(found["moved"].items()),
        "gradients": "reach the model",
    }


STEPS = ((2, 8), (4, 8), (4, 10), (3, 7), (4, 2), (2, 1))  # GPUs, rows


@exercise(title="Run the replicas, gather the outputs", difficulty=2, minutes=15)
def forward(data_parallel_forward: Any) -> dict[str, Any]:
    """Judge ``data_parallel_forward(model, batch, devices)``, which returns the output on the first GPU."""
    per_step = {}
    for (gpus, rows), found in zip(STEPS, run(_all_steps, data_parallel_forward, timeout=SECONDS), strict=True):
        for number, step in enumerate(found["steps"]):
            judge_output(gpus, rows, number, step)
            judge_step_gradients(gpus, rows, step)
        judge_where(gpus, rows, found)
        if rows >= gpus:  # else it is a matter of taste whether GPUs without rows get a replica
            per_step[gpus, rows] = judge_bytes(gpus, rows, found)
    seen, spans = run(_more_of_forward, data_parallel_forward, timeout=SECONDS)
    for gpus, batches in zip(GPUS, seen, strict=True):
        if batches != 1:
            raise Wrong(
                "the model's statistics see one batch in a step, that of GPU 0: give the first replica the model's own "
                f"buffers, and the others copies. See {gpus} GPUs",
                measured=f"{batches} batches",
                expected="1 batch",
            )
    judge_together(spans)
    return {"batches": len(STEPS), "bytes per step for 8 rows on 4 GPUs": per_step[4, 8], "GPUs at work together": 4}


def _all_steps(data_parallel_forward: Any) -> list[Any]:
    return [two_steps(data_parallel_forward, *step) for step in STEPS]


def _more_of_forward(data_parallel_forward: Any) -> tuple[list[int], dict[int, tuple[float, float]]]:
    seen = [batches_seen(data_parallel_forward, gpus) for gpus in GPUS]
    return seen, together(data_parallel_forward, 4)


LOSSES = ((2, 8), (3, 7), (4, 10), (4, 2), (2, 41))  # GPUs, rows


@exercise(
    title="Keep the loss in the replicas",
    difficulty=3,
    minutes=20,
    parts={"loss and gradients": 2, "memory": 1},
)
def loss(data_parallel_loss: Any) -> dict[str, Any]:
    """Judge ``data_parallel_loss(model, batch, targets, devices)``: the mean cross-entropy, on the first GPU."""
    most = 0
    for (gpus, rows), found in zip(LOSSES, run(_all_losses, data_parallel_loss, timeout=SECONDS), strict=True):
        judge_loss(gpus, rows, found)
        most = max(most, judge_gathered(gpus, rows, found))
        judge_loss_gradients(gpus, rows, found)
    passed("loss and gradients")
    peak = run(peak_of_gpu_0, data_parallel_loss, 4, timeout=SECONDS)
    if peak > MOST_ON_GPU_0:
        raise Wrong(
            "GPU 0 holds too much at its peak: with 50,000 classes, anything that has a number for each row and class "
            "must stay split over the GPUs",
            measured=f"{peak / 1e9:.2f} GB",
            expected=f"below {MOST_ON_GPU_0 / 1e9:.1f} GB",
        )
    return {"batches": len(LOSSES), "gathered from each GPU": f"{most} bytes", "peak of GPU 0": f"{peak / 1e9:.2f} GB"}


def _all_losses(data_parallel_loss: Any) -> list[Any]:
    return [loss_and_gradients(data_parallel_loss, *case) for case in LOSSES]
