"""Backward on simulated GPUs: gradients cross GPUs, and an error in the middle comes out as it is."""

import subprocess
import sys
from typing import ClassVar

import pytest
import torch
from simgpu_support import allocated, ones
from torch import nn
from torch.nn.parallel._functions import Broadcast
from torch.utils.checkpoint import checkpoint

import simgpu

pytestmark = pytest.mark.usefixtures("three_gpus")


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        raise KeyError("in the middle")


def _hook(x):
    y = x * 1

    def fail(_grad):
        raise KeyError("in the middle")

    y.register_hook(fail)
    return y


def _module_hook(x):
    layer = nn.Linear(3, 3).to(x.device)

    def fail(*_):
        raise KeyError("in the middle")

    layer.register_full_backward_hook(fail)
    return layer(x)


def _inside_checkpoint(use_reentrant):
    def function(x):
        calls = []

        def inner(x):
            calls.append(1)
            if len(calls) > 1:
                raise KeyError("in the middle")
            return x.sin().sin()

        return checkpoint(inner, x, use_reentrant=use_reentrant)

    return function


@pytest.mark.parametrize(
    "break_",
    [Broken.apply, _hook, _module_hook, _inside_checkpoint(True), _inside_checkpoint(False)],
    ids=["function", "hook of a tensor", "hook of a module", "checkpoint, reentrant", "checkpoint"],
)
@pytest.mark.parametrize("gpu", [0, 1])
def test_an_error_in_backward_comes_out_as_it_is_and_the_next_backward_works(gpu, break_):
    for _ in range(3):
        x = ones(3, 3, gpu=gpu).requires_grad_()
        with pytest.raises(KeyError, match="in the middle"):
            break_(x * 2).sin().sum().backward()
        (x * 3).sum().backward()
        with simgpu.profile() as prof:
            x.grad = None
            (x * 3).sum().backward()
        assert x.grad.tolist() == [[3.0] * 3] * 3
        assert {e.phase for e in prof.events} == {"forward", "backward"}
        del x
    assert allocated() == [0, 0, 0]


def test_torchs_own_mistakes_get_torchs_own_words():
    x = ones(3, gpu=1).requires_grad_()
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)
    z = x.exp()
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar"):
        (x * 2).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        ones(3, gpu=1).sum().backward()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ones(2, 3, gpu=1) @ ones(2, 3, gpu=1)
    with pytest.raises(IndexError):
        ones(2, gpu=1)[5]
    with pytest.raises(RuntimeError, match="size of tensor"):
        ones(2, gpu=1) + ones(3, gpu=1)


def test_a_new_object_refused_while_an_error_is_on_its_way_hands_that_error_over() -> None:
    """``backward.device_guard``: without it, C++ ends the process here."""
    code = """
import torch
import simgpu
simgpu.cluster()
x = torch.ones(3, device="simgpu:1", requires_grad=True)
y = x * 1
y.register_hook(lambda _grad: {}["missing"])
try:
    y.sum().backward()
except KeyError as error:
    print("came back:", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "came back: 'missing'\n"), done.stderr


def test_backward_runs_where_it_is_called_and_works_though_torch_has_run_one_before() -> None:
    """``backward.watched``: autograd starts its threads at the first backward, with the devices that there are then."""
    code = """
import threading, torch
torch.ones(2, requires_grad=True).sum().backward()
import simgpu
simgpu.cluster()
x = torch.ones(3, device="simgpu:1", requires_grad=True)
x.register_hook(lambda _grad: print(threading.current_thread().name))
x.sum().backward()
print(x.grad.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "MainThread\n[1.0, 1.0, 1.0]\n"), done.stderr


def test_a_failed_backward_leaves_nothing_in_the_engines_queue() -> None:
    """``backward._empty_queue``: the nodes that wait there hold what they have saved."""

    def fail(_grad: torch.Tensor) -> None:
        raise KeyError("in the middle")

    def failing() -> None:
        x = torch.ones(1000, device="simgpu:1", requires_grad=True)
        waits = x.exp().exp()
        y = x * 1
        y.register_hook(fail)
        (waits.sum() + y.exp().sum()).backward()

    with pytest.raises(KeyError):
        failing()
    assert torch.simgpu.memory_allocated(1) == 0


def test_the_gradient_of_a_gradient_crosses_gpus():
    x = torch.tensor([1.0, 2.0], device="simgpu:1", requires_grad=True)
    (slope,) = torch.autograd.grad((x.to("simgpu:2") ** 3).sum(), x, create_graph=True)
    assert slope.device == x.device
    slope.to("simgpu:0").sum().backward()
    assert x.grad.tolist() == [6.0, 12.0]


def test_functional_transforms_work():
    x = torch.randn(4, 3, device="simgpu:1")
    assert torch.equal(torch.func.vmap(lambda row: row.sum())(x), torch.stack([row.sum() for row in x]))
    assert torch.equal(torch.func.grad(lambda t: t.square().sum())(x), 2 * x)


def test_gradients_reach_every_gpu_that_took_part():
    x = torch.ones(3, device="simgpu:0", requires_grad=True)
    factor = torch.full((3,), 2.0, device="simgpu:1", requires_grad=True)
    host = torch.full((3,), 5.0, requires_grad=True)
    ((x.to("simgpu:1") * factor).to("simgpu:2").cpu() * host).sum().backward()
    assert (x.grad.device, x.grad.tolist()) == (simgpu.device(0), [10.0] * 3)
    assert (factor.grad.device, factor.grad.tolist()) == (simgpu.device(1), [5.0] * 3)
    assert (host.grad.device.type, host.grad.tolist()) == ("cpu", [2.0] * 3)


def test_gradients_that_are_zero_are_on_their_tensors_gpu_too():
    for function in (lambda x: torch.copysign(torch.ones_like(x), x), lambda x: x.repeat(0), lambda x: x.sgn()):
        x = torch.randn(3, device="simgpu:1", requires_grad=True)
        function(x).sum().backward()
        assert x.grad.device == x.device
        assert x.grad.tolist() == [0.0] * 3


def test_hooks_see_tensors_of_the_right_gpu():
    model, seen = nn.Linear(3, 4).to("simgpu:1"), []
    model.register_forward_hook(lambda _module, _inputs, out: seen.append(("forward", out.device.index)))
    model.register_full_backward_hook(lambda _module, _into, out: seen.append(("backward", out[0].device.index)))
    model.weight.register_hook(lambda grad: seen.append(("gradient", grad.device.index)) or 3 * grad)
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(("kept", p.grad.device.index)))
    model(torch.ones(2, 3, device="simgpu:1", requires_grad=True)).sum().backward()
    assert seen == [("forward", 1), ("gradient", 1), ("kept", 1), ("backward", 1)]
    assert model.weight.grad.tolist() == [[6.0] * 3] * 4, "2 rows of ones, times 3 by the hook"


class WhereAmI(torch.autograd.Function):
    seen: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        WhereAmI.seen.append(torch.simgpu.current_device())
        return gradient + torch.zeros(2, device="simgpu")


@pytest.mark.parametrize("chosen", (0, 1))
def test_backward_of_a_function_works_with_the_gpu_of_its_gradients(chosen):
    WhereAmI.seen.clear()
    x = torch.ones(2, device="simgpu:1", requires_grad=True)
    with torch.simgpu.device(chosen):
        WhereAmI.apply(WhereAmI.apply(x).to("simgpu:2")).sum().backward()
        assert WhereAmI.seen == [2, 1]
        assert torch.simgpu.current_device() == chosen


@pytest.mark.parametrize("root", [0, 1, 2])
@pytest.mark.parametrize("replica", [0, 1, 2])
def test_backward_through_one_replica_alone(root: int, replica: int) -> None:
    weight = torch.arange(3.0, device=f"simgpu:{root}").requires_grad_()
    copies = Broadcast.apply([root, *({0, 1, 2} - {root})], weight)
    (copies[replica] * 2).sum().backward()
    assert weight.grad.device == weight.device and weight.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "write", [lambda there, x: there[1:5].copy_(x), lambda there, x: there.__setitem__(slice(1, 5), x)]
)
def test_a_gradient_finds_the_way_back_from_where_a_tensor_was_written_on_another_gpu(write):
    simgpu.cluster(gpus_per_node=3)
    for home in ("simgpu:1", "cpu"):
        x = torch.arange(4.0).to(home).requires_grad_()
        there = torch.zeros(6, device="simgpu:2")
        write(there, x * 2)
        (there * torch.arange(6.0, device="simgpu:2")).sum().backward()
        assert str(x.grad.device) == home
        assert x.grad.tolist() == [2.0, 4.0, 6.0, 8.0]


def test_a_gradient_finds_the_way_back_from_a_single_number_that_was_copied_to_another_gpu():
    simgpu.cluster(gpus_per_node=3)
    x = torch.tensor(2.0, device="simgpu:1").requires_grad_()
    torch.empty_like(x, device="simgpu:2", requires_grad=False).copy_(x).square().backward()
    assert x.grad.device == x.device and x.grad.item() == 4.0
