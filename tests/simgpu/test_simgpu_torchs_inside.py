"""What the simulation takes for granted of torch's inside, each by itself: what breaks here, a new torch changed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import simgpu
from simgpu.tensors.placement import _call_site


@pytest.fixture(autouse=True)
def _cluster() -> None:
    simgpu.cluster(gpus_per_node=3)


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


def test_a_parameter_from_the_host_is_swapped_and_one_from_a_gpu_is_not() -> None:
    """``SimTensor.__tensor_flatten__``: Module.to asks whether there is such an attribute, and swaps if there is."""
    model = nn.Linear(2, 2)
    weight = model.weight
    model.to("simgpu:1")
    assert model.weight is weight and hasattr(torch.ones(2).to("simgpu:1"), "__tensor_flatten__")
    graph = model(torch.ones(1, 2, device="simgpu:1")).sum()  # swapping would fail while it uses the parameters
    made = nn.Linear(2, 2, device="simgpu:0").weight * 1
    assert not hasattr(made, "__tensor_flatten__")
    model.to("simgpu:2")
    assert model.weight is weight and weight.device == simgpu.device(2)
    assert graph.grad_fn is not None


def test_a_call_site_is_the_users_line_and_backward_has_none() -> None:
    """``placement._call_site``: the frames of this package and of torch's Python are left out."""
    here = [_call_site() for _ in range(2)]
    assert here[0] == here[1] != _call_site()
    seen = []

    class Asks(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(_call_site())
            return super().__torch_function__(func, types, args, kwargs or {})

    torch.ones(2).as_subclass(Asks).unflatten(0, (1, 2))  # through torch/_tensor.py
    assert seen[0] is not True and seen[0] not in here


def test_a_helper_of_an_operator_follows_its_input_and_a_tensor_of_another_line_does_not() -> None:
    """``placement.gpu_of_new_tensor``: what C++ creates "on the device of the input", for it always number 0."""
    x = torch.ones(3, 3, device="simgpu:2")
    assert torch.nn.functional.one_hot(torch.arange(3, device="simgpu:2")).device == simgpu.device(2)
    mine = torch.ones(3, 3, device="simgpu:0")
    with pytest.raises(RuntimeError, match="same device"):
        mine + x
