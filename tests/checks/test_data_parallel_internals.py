"""Under the checks: what is seen of simulated GPUs, and that right and wrong differ by what the checks look at."""

from __future__ import annotations

import copy
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.parallel._functions import Broadcast

import simgpu
from checks import Wrong
from checks.core import gpus
from checks.data_parallel_internals import autograd_functions, forwards, losses, nets, steps


def test_a_collective_counts_for_every_gpu_that_receives_or_sends():
    simgpu.cluster(gpus_per_node=3)
    x = torch.ones(4, device="simgpu:0", requires_grad=True)
    with gpus.seen() as ahead:
        copies = Broadcast.apply([0, 1, 2], x)
    with gpus.seen() as back:
        sum(copy.sum().to("simgpu:0") for copy in copies).backward()
    assert ahead["copies"] == {"GPU 0 → GPU 1": 16, "GPU 0 → GPU 2": 16}
    returned = back["copies"]
    assert {returned["GPU 1 → GPU 0"], returned["GPU 2 → GPU 0"]} == {16 + 4}  # gradients back, and the sums
    with gpus.seen() as there:
        torch.ones(2).to("simgpu:2").cpu()
    assert there["copies"] == {"host → GPU 2": 8, "GPU 2 → host": 8}


def test_what_each_gpu_computes_and_holds_is_seen_and_that_the_host_waits():
    simgpu.cluster(gpus_per_node=2)
    x = torch.ones(16, 16, device="simgpu:1")
    with gpus.seen() as seen:
        y = x @ x
        del y
        torch.simgpu.synchronize()
    assert seen["flops"] == {"forward": [0, 2 * 16**3], "backward": [0, 0]}
    assert seen["peak"] == [0, 1024] and seen["waits"] == 1
    assert gpus.held() == [0, 1024]


@pytest.mark.parametrize("statistics", [False, True])
def test_a_model_on_a_gpu_and_its_twin_are_the_same(statistics):
    simgpu.cluster(gpus_per_node=2)
    model, twin = nets.pair(5, simgpu.device(1), "float64", statistics)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in twin.named_parameters()]
    assert model.body.again.weight is model.body.square.weight
    assert {gpus.place(tensor) for tensor in nets.state(model)} == {"GPU 1"}
    rows = nets.rows(4, model, 3)
    assert torch.equal(model(rows.to("simgpu:1")).cpu(), twin(rows))


@pytest.mark.parametrize("seed", range(6))
def test_broadcast_and_gather_meet_gpus_in_another_order_and_a_single_one(seed):
    cases = autograd_functions.draw(random.Random(seed))
    devices = [[int(one) for one in case["devices"].split(", ")] for case in cases]
    assert sorted(map(len, devices)) == [1, 2, 3, 4, 5] and any(one != sorted(one) for one in devices)
    assert all(max(one) < case["gpus"] for one, case in zip(devices, cases, strict=True))


def test_bytes_of_gather_may_be_fewer_where_a_part_is_not_trained():
    parts = [{"place": f"GPU {gpu}", "value": torch.ones(2)} for gpu in (0, 1, 2)]
    call = {"name": "Gather", "numbers": [0, 1, 2], "target": 1, "given": parts, "trained": [True, False, False]}
    for way, total, broken in (("forward", 16, 0), ("forward", 8, 1), ("backward", 8, 0), ("backward", 16, 0),
                               ("backward", 24, 1), ("backward", 0, 1)):  # fmt: skip
        assert len(list(autograd_functions._moved(call, way, {"GPU 1 → GPU 0": total}))) == broken


def test_how_many_rows_may_leave_the_first_gpu():
    assert steps.shares(8, 4) == (2, [6])
    assert steps.shares(7, 3) == (3, [6, 5, 4])  # shares of 1, 3, 3 to 3, 3, 1
    assert steps.shares(2, 4) == (1, [1])
    assert steps.shares(5, 1) == (5, [0])


def _in_replicas(model, batch, targets, devices):
    total = 0
    tensors = dict(model.named_parameters())
    copies = [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]
    parts = zip(copies, batch.chunk(len(devices)), targets.chunk(len(devices)), devices, strict=True)
    for replica, rows, wanted, device in parts:
        logits = functional_call(model, replica, rows.to(device))
        total = total + F.cross_entropy(logits, wanted.to(device), reduction="sum").to(devices[0])
    return total / len(batch)


def _gathered(model, batch, targets, devices):
    return F.cross_entropy(nn.DataParallel(model, devices)(batch), targets)


def test_the_stated_peak_lies_well_between_right_and_wrong():
    peaks = []
    for function in (_in_replicas, _gathered):
        simgpu.cluster(gpus_per_node=4, numbers=False)
        devices = [simgpu.device(number) for number in range(4)]
        with devices[0]:
            model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, losses.MANY_CLASSES))
            batch, targets = torch.empty(losses.MANY_ROWS, 256), torch.zeros(losses.MANY_ROWS, dtype=torch.int64)
        with gpus.seen() as seen:
            function(model, batch, targets, devices).backward()
        peaks.append(max(seen["peak"]))
        limit = losses.limit(sum(p.nbytes for p in model.parameters()), losses.MANY_ROWS // 4, losses.MANY_CLASSES)
    assert 2.4e9 < limit < 2.45e9  # "2.4 GB" in the lab
    assert peaks[0] < 0.6 * limit and peaks[1] > 2 * limit


def test_gpus_that_work_one_after_the_other_are_found():
    assert list(forwards._judge_together({0: (0.0, 1.0), 1: (0.9, 1.8)})) == []
    (broken,) = forwards._judge_together({0: (0.0, 1.0), 1: (0.5, 1.5), 2: (1.0, 2.0)})
    assert "GPU 2 begins when GPU 0 has ended" in broken.sentence


def test_threads_that_share_a_module_are_found_and_others_are_not():
    model = nets.Net(3, "float64", statistics=False)
    x = nets.rows(3, model, 1)
    with ThreadPoolExecutor(2) as threads:
        for twin in (model, copy.deepcopy(model)):
            nets._arrived[0] = 0
            work = [threads.submit(layers, x) for layers in (model, twin)]
            failures = [one.exception() for one in work]
            assert any(isinstance(failure, Wrong) for failure in failures) == (twin is model)


def test_no_gpu_gets_a_single_row_for_its_statistics():
    """In training mode batch normalisation refuses it, whoever wrote the answer."""
    for seed in range(200):
        for case in forwards.draw(random.Random(seed)):
            if case["play"] == "statistics":
                parts = torch.arange(case["rows"]).chunk(len(case["devices"].split(", ")))
                assert min(map(len, parts)) > 1
