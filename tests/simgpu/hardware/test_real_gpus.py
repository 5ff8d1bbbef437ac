"""One model, trained on the CPU, on simulated GPUs and (where there are some) on real ones: the same numbers."""

import json
import subprocess
import sys

import pytest
import torch
from real_gpus import needs_gpus

from simgpu.tensors import backward

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
    import simgpu
    simgpu.cluster(gpus_per_node=4)
print(json.dumps(train(device, parallel)))
"""


def losses(device: str, how: str) -> list[float]:
    """Losses of ten steps, in a process of its own (one that simulates GPUs does not use real ones)."""
    done = subprocess.run([sys.executable, "-c", TRAIN, device, how], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nightly
def test_cpu_one_simulated_gpu_and_four_give_the_same_losses() -> None:
    cpu = losses("cpu", "alone")
    assert cpu[-1] < cpu[0]
    assert losses("simgpu:0", "alone") == cpu
    # Four GPUs add up the gradient in another order: equal to fp64's rounding, carried through ten steps.
    assert losses("simgpu:0", "parallel") == pytest.approx(cpu, rel=1e-12)


@needs_gpus(1)
def test_a_real_gpu_gives_the_losses_of_the_simulated_one() -> None:
    # Another order of additions in every matrix product: equal to fp64's rounding, carried through ten steps.
    assert losses("cuda:0", "alone") == pytest.approx(losses("simgpu:0", "alone"), rel=1e-9)


@needs_gpus(2)
def test_data_parallel_on_real_gpus_gives_the_losses_of_the_simulated_ones() -> None:
    assert losses("cuda:0", "parallel") == pytest.approx(losses("simgpu:0", "parallel"), rel=1e-9)


BESIDE = """
import torch
from torch import nn
import simgpu

def network(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5)).double().to(device)
    return model(torch.randn(24, 12, dtype=torch.float64).to(device)), {str(p.device) for p in model.parameters()}

with simgpu.cluster(gpus_per_node=2):
    (real, where), (simulated, there) = network("cuda:0"), network("simgpu:0")
    assert (where, there) == ({"cuda:0"}, {"simgpu:0"})
    torch.testing.assert_close(real.cpu(), simulated.cpu())
    simulated.sum().backward()
    pinned = torch.ones(1000).pin_memory()
    pinned.to("cuda", non_blocking=True)
    assert pinned.is_pinned() and not torch.ones(3).is_pinned()
for once in "after", "again":
    try:
        real.sum().backward()
    except RuntimeError as error:
        assert "restart the kernel" in str(error)
    else:
        raise AssertionError("a backward on a real GPU is refused")
"""


@needs_gpus(1)
def test_real_gpus_compute_beside_a_simulated_cluster_and_say_that_they_do_not_train() -> None:
    subprocess.run([sys.executable, "-c", BESIDE], check=True, timeout=120)


def test_backward_is_refused_on_real_gpus_only() -> None:
    ran = []
    engine = backward.refusing_real_gpus(lambda tensors, *_args, **options: ran.append((tensors, options)))
    engine((torch.ones(1), torch.ones(1, device="meta")), (None, None), accumulate_grad=True)
    assert ran[0][1] == {"accumulate_grad": True}
    with pytest.raises(RuntimeError, match="restart the kernel"):
        engine((torch.ones(1), OnRealGPU()))
    assert len(ran) == 1


class OnRealGPU:
    """What a parameter on a real GPU says of its place, on a machine without one."""

    device = torch.device("cuda:1")
