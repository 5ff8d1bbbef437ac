"""Under the checks: what is seen of simulated GPUs."""

from __future__ import annotations

import torch
from torch.nn.parallel._functions import Broadcast

import simgpu
from checks.engine import gpus
from checks.labs.data_parallel_internals import models


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


def test_a_row_of_the_model_takes_as_many_operations_as_the_check_says():
    simgpu.cluster(gpus_per_node=2)
    model = gpus.put(models.Net(statistics=False).double(), simgpu.device(1))
    with gpus.seen() as seen:
        model(models.rows(3, "float64").to("simgpu:1"))
    assert seen["flops"]["forward"] == [0, 3 * models.FLOPS]
