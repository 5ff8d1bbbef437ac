"""Autocast and gradient scaling on simulated GPUs: the types that CUDA chooses."""

import re
from pathlib import Path

import pytest
import torch
from simgpu_support import assert_same_bits, on_gpu
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import simgpu
from simgpu.tensors import autocast

pytestmark = pytest.mark.numeric


@pytest.fixture(autouse=True)
def _cluster():
    simgpu.cluster(gpus_per_node=4)
    torch.manual_seed(0)


def test_autocast_computes_what_the_cpus_autocast_computes_where_their_lists_agree():
    model, inputs = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5)), torch.randn(7, 6)
    copied = on_gpu(model, 1)
    results = []
    for net, x, kind in ((model, inputs, "cpu"), (copied, inputs.to("simgpu:1"), "simgpu")):
        with torch.autocast(kind, dtype=torch.bfloat16):
            out = net(x)
        assert out.dtype is torch.bfloat16
        out.float().square().mean().backward()
        results.append({"out": out} | {name: p.grad for name, p in net.named_parameters()})
    assert_same_bits(*results)
    assert results[1]["0.weight"].dtype is torch.float32, "gradients have their parameter's type"


def test_autocast_chooses_the_types_that_cuda_chooses():
    x, w = torch.randn(4, 4, device="simgpu:1"), torch.randn(4, 4, device="simgpu:1")
    half, labels = x.bfloat16(), torch.zeros(4, dtype=torch.long, device="simgpu:1")
    low, full = torch.bfloat16, torch.float32
    with torch.autocast("simgpu", dtype=low):
        types = {
            "mm": ((x @ w).dtype, low),
            "linear": (F.linear(x, w).dtype, low),
            "einsum": (torch.einsum("ij,jk->ik", x, w).dtype, low),
            "conv": (F.conv1d(x[None], w[..., None]).dtype, low),
            "attention": (F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]).dtype, low),
            "layer_norm": (F.layer_norm(half, (4,)).dtype, full),
            "softmax": (half.softmax(1).dtype, full),
            "log_softmax": (half.log_softmax(1).dtype, full),
            "cross_entropy": (F.cross_entropy(half, labels).dtype, full),
            "mse": (F.mse_loss(half, half).dtype, full),
            "exp": (half.exp().dtype, full),
            "sum": (half.sum().dtype, full),
            "relu keeps": (half.relu().dtype, low),
            "add promotes": ((half + x).dtype, full),
            "gelu keeps": (F.gelu(half).dtype, low),
            "widest": (torch.addcmul(half, x, x).dtype, full),
            "float64 stays": ((x.double() @ w.double()).dtype, torch.float64),
            "whole numbers stay": (labels.sum().dtype, torch.long),
        }
        with torch.autocast("simgpu", enabled=False):
            assert (x @ w).dtype is full
    assert (x @ w).dtype is full, "outside nothing changes"
    assert {name: found for name, (found, _) in types.items()} == {name: want for name, (_, want) in types.items()}


def test_the_lists_of_autocast_are_those_of_torchs_header():
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    parts = re.split(r"#define AT_FORALL_(\w+)\(_\)", header)
    lists = {name: set(re.findall(r"_\((\w+)", body.split("\n\n")[0])) for name, body in zip(parts[1::2], parts[2::2])}  # noqa: B905
    fp32 = lists["FP32"] | {"norm"} if "norm" in lists["FP32"] else lists["FP32"]
    assert set(autocast.LOWER_PRECISION) == lists["LOWER_PRECISION_FP"]
    assert set(autocast.WIDEST) == lists["PROMOTE"]
    assert set(autocast.FP32) == fp32
    assert set(autocast.FP32_RESULT) - {"norm"} == lists["FP32_SET_OPT_DTYPE"] - {"norm"}


def test_a_gradient_scaler_works_as_on_cuda():
    model = nn.Linear(4, 4).to("simgpu:1")
    scaler, optimizer = torch.amp.GradScaler("simgpu", init_scale=8.0), torch.optim.SGD(model.parameters(), lr=0.5)
    before = model.weight.detach().clone()
    scaler.scale(model(torch.ones(2, 4, device="simgpu:1")).sum()).backward()
    assert model.weight.grad.tolist() == [[16.0] * 4] * 4, "two rows of ones, times the scale"
    scaler.step(optimizer)
    assert_close(before - model.weight, torch.ones(4, 4, device="simgpu:1")), "0.5 · 2: the scale is taken out"
    scaler.update()
    assert scaler.get_scale() == 8.0
