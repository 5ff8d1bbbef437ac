"""One step of a pipeline on ideal GPUs, where only matrix products take time.

What is idle then is idle because of the order of the work, and the formula for the bubble is exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from utils.checks.model_parallelism.balancing import judge_places
from utils.checks.model_parallelism.ideal_stages import WIDTH, Case, ideal_stages
from utils.checks.model_parallelism.one_device import Reference
from utils.checks.model_parallelism.pipeline_watch import Watch
from utils.hardware.links import Link

NO_TIME_S = 1e-12  # for a launch and for a message: next to nothing beside the 0.1 ms of a matrix product here


def ideal_cluster(gpus: int) -> Any:
    """A simulated cluster in which only matrix products take time, and copies never wait for a link."""
    from utils import simgpu
    from utils.simgpu.hardware import TOY
    from utils.simgpu.work import Port

    link = Link("ideal link", NO_TIME_S, 1e18, 2026, "invented: it takes next to no time", "invented")
    rates = dict.fromkeys(TOY.flops, 10e9)
    gpu = dataclasses.replace(TOY, name="ideal", flops=rates, memory_bytes_per_s=1e18, nvlink=link, host=link)
    cluster = simgpu.cluster(gpus_per_node=gpus, gpu=gpu, launch_s=NO_TIME_S)
    cluster.path = lambda *_: (link, (Port("a link of its own"),))
    return cluster


def judged_steps(train_step: Any, kind: str, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Run one step of a pipeline for each case, and judge its numbers, and how it came to them.

    Args:
        train_step: the answer, called with (stages, batch, targets, loss_fn, micro_batches).
        kind: ``GPIPE`` or ``ONE_F_ONE_B``.
        cases: how large the steps are.

    Returns:
        Figures of each: "bubble", "transfers", "held": the micro-batches' worth of activations at GPU 0's peak.
    """
    return [run_step(train_step, case).judge(kind) for case in cases]


def gpipe_held(case: Case) -> float:
    """How many micro-batches' activations GPU 0 holds at its peak in a GPipe step."""
    return run_step(right_gpipe_step, case).held(0)


def run_step(train_step: Any, case: Case) -> Watch:
    """Run one step and judge its numbers; how it came to them is in what is returned."""
    import torch

    p, m, samples = case.p, case.m, case.samples
    torch.set_num_threads(1)  # these tensors are small: more threads would only wait for each other
    cluster = ideal_cluster(p)
    torch.manual_seed(p + 10 * m)
    models = ideal_stages(p)
    batch, targets = torch.randn(samples, WIDTH), torch.randn(samples, WIDTH)
    loss_fn: Callable[..., Any] = torch.nn.functional.mse_loss
    if case.classes:
        targets, loss_fn = torch.randint(WIDTH, (samples,)), torch.nn.functional.cross_entropy
    reference = Reference(models, batch, targets, loss_fn, m)
    placed = [stage.to(f"simgpu:{i}") for i, stage in enumerate(models)]
    inputs = batch.to("simgpu:0"), targets.to(f"simgpu:{p - 1}")
    watch = Watch(cluster, case, placed)
    with watch:
        loss = train_step(placed, *inputs, loss_fn, m)
    judge_places(case.text, placed)
    watch.judge_host()
    reference.judge(case.text, loss, [[parameter.grad for parameter in stage.parameters()] for stage in placed])
    return watch


def right_gpipe_step(stages: Sequence[Any], batch: Any, targets: Any, loss_fn: Any, micro_batches: int) -> Any:
    """A right GPipe step, for comparison."""
    losses = []
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)
