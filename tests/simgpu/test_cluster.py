"""Clusters that cannot be, GPUs that are not there, and tensors of an earlier cluster."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from simgpu_support import allocated, ones
from torch import nn

import simgpu

pytestmark = pytest.mark.usefixtures("three_gpus")


MISSING = {
    "factory": lambda: torch.ones(1, device="simgpu:9"),
    "like": lambda: torch.zeros_like(torch.ones(1), device="simgpu:3"),
    "new": lambda: ones(1, gpu=1).new_zeros(3, device="simgpu:9"),
    "tensor": lambda: torch.tensor([1.0], device="simgpu:3"),
    "from the cpu": lambda: torch.ones(1).to("simgpu:3"),
    "from a gpu": lambda: ones(1, gpu=1).to("simgpu:3"),
    "method": lambda: torch.ones(1).simgpu(3),
    "module": lambda: nn.Linear(2, 2).to("simgpu:7"),
    "set_device": lambda: torch.simgpu.set_device(3),
    "device context": lambda: torch.simgpu.device(9),
    "stream": lambda: simgpu.Stream(3),
    "memory": lambda: torch.simgpu.memory_allocated(3),
    "on": lambda: simgpu.on(3).__enter__(),
    "simgpu.device": lambda: simgpu.device(3),
    "autocast region": lambda: torch.simgpu.synchronize(5),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_gpu_that_does_not_exist_is_an_invalid_device_ordinal(name):
    with pytest.raises(RuntimeError, match=r"invalid device ordinal: simgpu:\d .*has 3 GPUs, simgpu:0 to simgpu:2"):
        MISSING[name]()
    assert allocated() == [0, 0, 0]


def test_clusters_that_cannot_be_are_refused():
    for options, words in (
        ({"gpus_per_node": 0}, "gpus_per_node must be a whole number from 1"),
        ({"gpus_per_node": -1}, "from 1 to 1024, not -1"),
        ({"gpus_per_node": 2.0}, "whole number"),
        ({"gpus_per_node": True}, "whole number"),
        ({"gpus_per_node": 2000}, "from 1 to 1024, not 2000"),
        ({"nodes": 0}, "nodes must be"),
        ({"nodes": 129}, "from 1 to 128, not 129"),
        ({"nodes": 128, "gpus_per_node": 16}, "128 nodes × 16 GPUs are 2048 GPUs: simulate at most 1024"),
        ({"gpu": "H100 SMX"}, "Did you mean 'H100 SXM'"),
        ({"gpu": ["H100"] * 3}, "names 3 GPUs, but the cluster has 4"),
        ({"gpu": ["H100", "H100", "H100", "abacus"]}, "no GPU called 'abacus'"),
        ({"launch_s": -1.0}, "at least 0"),
        ({"memory": 0}, "memory"),
        ({"nics_per_node": 0}, "nics_per_node"),
    ):
        with pytest.raises(ValueError, match=words):
            simgpu.cluster(**options)


def test_a_cluster_that_is_refused_leaves_the_old_one():
    x = ones(3, gpu=1)
    with pytest.raises(ValueError, match="no GPU called"):
        simgpu.cluster(gpu="abacus")
    assert (x + 1).tolist() == [2.0] * 3


OUTDATED = {
    "operator": lambda x: x + 1,
    "operator with a new one": lambda x: ones(3, gpu=1) + x,
    "to a gpu": lambda x: x.to("simgpu:0"),
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x[0].item(),
    "list": lambda x: x.tolist(),
    "copy into": lambda x: ones(3, gpu=1).copy_(x),
    "copy from": lambda x: x.copy_(torch.ones(3)),
    "backward": lambda x: x.sum().backward(),
    "in place": lambda x: x.detach().add_(1),
    "view": lambda x: x[1:] + 0,
    "foreach": lambda x: torch._foreach_add([x.detach()], 1.0),
    "save": lambda x: torch.save(x, "/dev/null"),
    "if": lambda x: bool(x[0] > 0),
}


@pytest.mark.parametrize("name", OUTDATED)
def test_a_tensor_of_an_earlier_cluster_says_so(name):
    x = ones(3, gpu=1).requires_grad_()
    simgpu.cluster(gpus_per_node=3)
    with pytest.raises(RuntimeError, match="earlier simulated cluster"), torch.set_grad_enabled(name == "backward"):
        OUTDATED[name](x)
    assert allocated() == [0, 0, 0] or name in ("operator with a new one", "copy into")


def _python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2]
    )


def test_without_a_cluster_everything_says_what_to_call():
    code = """
import torch
from torch import nn
import simgpu
calls = [
    lambda: simgpu.device(0), lambda: simgpu.profile(), lambda: simgpu.synchronize(), lambda: simgpu.Stream(0),
    lambda: simgpu.current(), lambda: simgpu.Event().record(), lambda: simgpu.on(0),
    lambda: simgpu.region("F").__enter__(),
]
for i, call in enumerate(calls):
    try:
        call()
        print(i, "no error")
    except (RuntimeError, ValueError) as error:
        print(i, "simgpu.cluster(" in str(error) or str(error))
model = nn.DataParallel(nn.Linear(2, 2))
print(model(torch.ones(3, 2)).shape, hasattr(torch, "simgpu"))
x = torch.ones(3, requires_grad=True)
x.sum().backward()
torch.save(x, "/dev/null")
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines[:-1] if not line.endswith("True")] == []
    assert lines[-1] == "torch.Size([3, 2]) False"
