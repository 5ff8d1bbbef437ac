"""One model, trained on the CPU, on simulated GPUs and (where there are some) on real ones: the same numbers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

TRAIN = """
import json, sys, torch
from torch import nn

def train(device, parallel):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 5)).double()
    images, labels = torch.randn(24, 12, dtype=torch.float64), torch.randint(0, 5, (24,))
    model, images, labels = model.to(device).eval(), images.to(device), labels.to(device)
    network = nn.DataParallel(model) if parallel else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

device, parallel = sys.argv[1], sys.argv[2] == "parallel"
if device.startswith("simgpu"):
    from utils import simgpu
    simgpu.cluster(gpus_per_node=4)
print(json.dumps(train(device, parallel)))
"""


def losses(device: str, how: str) -> list[float]:
    """Losses of ten steps, in a process of its own (one that simulates GPUs does not use real ones)."""
    done = subprocess.run([sys.executable, "-c", TRAIN, device, how], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_cpu_one_simulated_gpu_and_four_give_the_same_losses() -> None:
    cpu = losses("cpu", "alone")
    assert cpu[-1] < cpu[0]
    assert losses("simgpu:0", "alone") == cpu
    # Four GPUs add up the gradient in another order: equal to fp64's rounding, carried through ten steps.
    assert losses("simgpu:0", "parallel") == pytest.approx(cpu, rel=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a real GPU")
def test_a_real_gpu_gives_the_losses_of_the_simulated_one() -> None:
    # Another order of additions in every matrix product: equal to fp64's rounding, carried through ten steps.
    assert losses("cuda:0", "alone") == pytest.approx(losses("simgpu:0", "alone"), rel=1e-9)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two real GPUs")
def test_data_parallel_on_real_gpus_gives_the_losses_of_the_simulated_ones() -> None:
    assert losses("cuda:0", "parallel") == pytest.approx(losses("simgpu:0", "parallel"), rel=1e-9)
