"""Schedules of micro-batches, and a training step that follows them: the same numbers, less waiting, less memory."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import simgpu
from lessons.algorithms.pipelines import Schedule, Task, cut, gpipe, launch_order, one_f_one_b, train_step

pytestmark = pytest.mark.numeric

BOTH = pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
WIDTH = 8


def _words(schedule: list[list[Task]]) -> list[str]:
    return [" ".join(map(str, tasks)) for tasks in schedule]


def _pieces(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def _batch(size: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, WIDTH, generator=generator), torch.randn(size, WIDTH, generator=generator)


def _gradients(pieces: list[nn.Module]) -> list[Tensor]:
    return [parameter.grad.cpu() for piece in pieces for parameter in piece.parameters()]


# ---------------------------------------------------------------------- schedules
def test_gpipe_runs_all_forward_passes_first() -> None:
    assert _words(gpipe(2, 3)) == ["F0 F1 F2 B2 B1 B0"] * 2


def test_one_f_one_b_is_the_schedule_of_the_paper() -> None:
    assert _words(one_f_one_b(4, 4)) == [
        "F0 F1 F2 F3 B0 B1 B2 B3",
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


@BOTH
@pytest.mark.parametrize(("stages", "micro_batches"), list(itertools.product((1, 2, 5), (1, 2, 3, 8))))
def test_every_stage_does_every_task_once_and_the_thread_launches_it_after_what_it_needs(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    every = {Task(kind, i) for kind in "FB" for i in range(micro_batches)}
    plan = schedule(stages, micro_batches)
    assert all(set(tasks) == every and len(tasks) == len(every) for tasks in plan)

    order = launch_order(plan)
    place = {event: number for number, event in enumerate(order)}
    assert [[task for what, s, task in order if what == "run" and s == stage] for stage in range(stages)] == plan
    assert sum(what == "send" for what, *_ in order) == 2 * (stages - 1) * micro_batches
    for what, stage, task in order:
        step = 1 if task.kind == "F" else -1
        if what == "send":
            assert place["run", stage, task] < place[what, stage, task] < place["run", stage + step, task]


def test_a_schedule_that_never_ends_is_refused_with_the_tasks_that_wait() -> None:
    backward_first = [[Task("B", 0), Task("F", 0)], [Task("F", 0), Task("B", 0)]]
    with pytest.raises(ValueError, match="never ends; what waits: B0 on stage 0, F0 on stage 1"):
        launch_order(backward_first)


# ---------------------------------------------------------------------- a training step
@BOTH
@pytest.mark.parametrize("micro_batches", [1, 3, 6])
@pytest.mark.parametrize("device", ["cpu", "simgpu"])
def test_a_pipeline_gives_the_loss_and_the_gradients_of_the_whole_model(
    schedule: Schedule, micro_batches: int, device: str
) -> None:
    alone, x, y = _pieces(4), *_batch()
    expected = mse_loss(nn.Sequential(*alone)(x), y)
    expected.backward()

    simgpu.cluster(gpus_per_node=3)
    devices = [f"simgpu:{i}" for i in range(3)] if device == "simgpu" else ["cpu"] * 3
    pieces = _pieces(4)
    stages = cut(pieces, [1, 1, 2], devices)
    loss = train_step(stages, x.to(devices[0]), y.to(devices[2]), mse_loss, micro_batches, schedule)

    torch.testing.assert_close(loss.cpu(), expected.detach())
    torch.testing.assert_close(_gradients(pieces), _gradients(alone))
    if micro_batches == 1:  # nothing is added up in another order
        assert torch.equal(loss.cpu(), expected.detach())
        assert all(map(torch.equal, _gradients(pieces), _gradients(alone)))


def _profile(schedule: Schedule, stages: int, micro_batches: int) -> simgpu.Profile:
    """Equal and large stages, no launch cost, shapes only: as the formulas have it."""
    simgpu.cluster(gpus_per_node=stages, numbers=False, launch_s=0)
    devices = [f"simgpu:{i}" for i in range(stages)]
    # (The norm has parameters too: so the backward pass of the first stage is as long as all others.)
    with torch.device(devices[0]):
        layers = [nn.Sequential(nn.LayerNorm(4096), nn.Linear(4096, 16384), nn.Linear(16384, 4096)) for _ in devices]
    cut(layers, [1] * stages, devices)
    x = torch.randn(2048 * micro_batches, 4096, device=devices[0])
    y = torch.randn(2048 * micro_batches, 4096, device=devices[-1])
    with simgpu.profile() as prof:
        train_step(layers, x, y, mse_loss, micro_batches, schedule)
    return prof


@BOTH
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 8), (4, 4), (8, 8)])
def test_the_bubble_is_that_of_the_formula(schedule: Schedule, stages: int, micro_batches: int) -> None:
    prof = _profile(schedule, stages, micro_batches)
    busy = sum(prof.busy(gpu) for gpu in range(stages)) / (stages * prof.elapsed)
    assert 1 - busy == pytest.approx((stages - 1) / (micro_batches + stages - 1), abs=0.01)


def test_one_f_one_b_keeps_activations_of_fewer_micro_batches() -> None:
    stages, micro_batches = 4, 8
    gpipe_peaks, peaks = (
        [prof.memory_at_peak(gpu)["activations"] for gpu in range(stages)]
        for prof in (_profile(gpipe, stages, micro_batches), _profile(one_f_one_b, stages, micro_batches))
    )
    for stage in range(stages - 1):  # (the last stage also holds what the loss needs)
        share = (stages - stage) / micro_batches
        assert peaks[stage] == pytest.approx(share * gpipe_peaks[stage], rel=0.35)


def test_batches_and_models_that_cannot_be_cut_are_refused() -> None:
    x, y = _batch(12)
    with pytest.raises(ValueError, match="a batch of 12 cannot be cut into 5 equal micro-batches"):
        train_step(_pieces(2), x, y, mse_loss, 5)
    for sizes in ([1, 1], [1, 2, 1]):
        with pytest.raises(ValueError, match="4 pieces on 2 devices cannot be cut"):
            cut(_pieces(4), sizes, ["cpu", "cpu"])
