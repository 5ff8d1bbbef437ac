"""The simulated data loader: who waits for whom, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from checks.engine.verdicts import Wrong
from checks.labs.feeding_the_ranks.simulated_loader import AHEAD, Machine

still = {"jitter": 0.0, "ship_s": 0.0}


def _seconds(machine: Machine, workers: int, batches: int) -> list[float]:
    return [round(one, 6) for one in machine.measure(workers, batches)]


def test_without_workers_loading_and_training_add_up():
    assert _seconds(Machine(load_s=0.04, step_s=0.01, **still), 0, 3) == [0.05] * 3
    assert _seconds(Machine(load_s=0.04, alone_s=0.02, disk_s=0.01, step_s=0.01, **still), 0, 2) == [0.04] * 2


def test_one_worker_loads_while_the_other_process_trains():
    assert _seconds(Machine(load_s=0.04, step_s=0.01, start_s=0.5, **still), 1, 4) == [0.55, 0.04, 0.04, 0.04]
    assert _seconds(Machine(load_s=0.01, step_s=0.04, start_s=0.5, **still), 1, 4) == [0.55, 0.04, 0.04, 0.04]


def test_batches_come_in_bursts_one_of_each_worker():
    seconds = _seconds(Machine(load_s=0.4, step_s=0.01, start_s=0.5, **still), 4, 12)
    assert seconds == [0.91, 0.01, 0.01, 0.01, 0.37, 0.01, 0.01, 0.01, 0.37, 0.01, 0.01, 0.01]


def test_a_disk_that_serves_one_after_the_other_sets_the_pace():
    machine = Machine(load_s=0.001, disk_s=0.02, step_s=0.001, **still)
    assert machine.true_seconds(2) == pytest.approx(0.02) == machine.true_seconds(8)


def test_a_worker_holds_as_many_batches_as_one_of_torch():
    assert torch.utils.data.DataLoader(range(4), num_workers=1).prefetch_factor == AHEAD


def test_what_does_not_fit_is_refused():
    machine = Machine(cores=8, ranks=2, worker_bytes=10, free_bytes=60)
    assert machine.most == 3
    machine.measure(3, 1)
    with pytest.raises(Wrong, match="do not fit into memory"):
        machine.measure(4, 1)
    with pytest.raises(Wrong, match="the cores are shared"):
        Machine(cores=8, ranks=2).measure(5, 1)
