"""Threads beside the main one: autograd's, with errors that come back from them, and those of a ``ThreadPoolExecutor``.

Each has a lane of the host. What the main thread launches after ``backward()`` or ``future.result()`` comes after what
they have done, so the simulation must know when that ended: threads of a pool live on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.grad_mode import set_multithreading_enabled

from simgpu._torch import DeviceGuard
from simgpu.changes import around
from simgpu.cluster import current, exists
from simgpu.tensors.tensor import SimTensor, new
from simgpu.time.phases import in_backward
from simgpu.torch_module import on

_errors: list[BaseException] = []


def device_guard() -> DeviceGuard:
    """What C++ asks for the device's type; and the cure of a defect of torch 2.13 that ends the process.

    If a hook or an operator raises during backward, autograd's thread leaves its stream guard, whose end asks the
    device guard for its type, in Python. Python cannot be called while an exception is on its way in C++: that throws
    another one, and two at once end the process ("terminate called without an active exception"). So the method first
    puts the exception aside, and ``watched`` raises it when autograd has returned.

    How it gets hold of the exception: CPython refuses a new object that a type returns while an exception is set, and
    raises a SystemError with that exception as its cause.
    """
    private_use = torch.autograd.DeviceType.PrivateUse1

    def type_(_self: Any, make_something: Any = object, kind: Any = private_use) -> Any:
        try:
            make_something()
        except SystemError as error:
            _errors.append(error.__cause__ or error)
        return kind

    return type("DeviceGuard", (DeviceGuard,), {"type_": type_})()


@around
def watched(engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Autograd's engine, with the simulation's lanes for its threads from when it is called until it returns.

    In fact it runs in the thread that calls it: the engine starts its threads at the first backward of a process, for
    the devices that torch knows then, which need not include this one.
    """
    if not exists():
        return engine(*args, **kwargs)
    _check_gradients(*args)
    gpu = next((tensor.get_device() for tensor in args[0] if isinstance(tensor, SimTensor)), current().first)
    try:
        with current().own_selection(gpu), current().clock.backward(), set_multithreading_enabled(False):
            return engine(*args, **kwargs)
    except BaseException as error:
        aside = _errors[0] if _errors and isinstance(error, SystemError) else None  # see device_guard
        if not in_backward():
            _errors.clear()  # their tracebacks keep tensors alive
            _empty_queue(engine)
        if aside is None:
            raise
    try:
        raise aside
    finally:
        del aside  # or error, traceback, frame and error hold each other, and the tensors in the frames


@around
def refusing_real_gpus(engine: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Autograd's engine, which in this process knows simulated GPUs as the only ones.

    The name of an accelerator is given for good, and C++ asks for streams of that one: a backward on a real GPU would
    end with an assertion about them inside of torch (seen on an H200 with torch 2.11; 2.13 has the same line).
    """
    if any(str(getattr(tensor, "device", "")).startswith("cuda") for tensor in tensors):  # (a graph's edges: none)
        raise RuntimeError(
            "torch's autograd works for one kind of GPU in a process, and this one has made simulated GPUs: train "
            "on real GPUs in another process (restart the kernel, and make no simulated cluster before)."
        )
    return engine(tensors, *args, **kwargs)


@around
def on_its_gpu(apply: Any, node: Any, *gradients: Any) -> Any:
    """``backward`` of an ``autograd.Function``: inside, the current GPU is that of its gradients.

    On CUDA each GPU's nodes run in a thread whose current GPU is this one. (Here hooks see that of the graph's end.)
    """
    gpu = next((gradient.get_device() for gradient in gradients if isinstance(gradient, SimTensor)), None)
    if gpu is None:
        return apply(node, *gradients)
    with on(gpu):
        return apply(node, *gradients)


def _check_gradients(tensors: Any, gradients: Any = (), *_: Any) -> None:
    """``y.backward(gradient)`` wants the gradient on the GPU of ``y``; C++ cannot tell."""
    for i, (tensor, gradient) in enumerate(zip(tensors, gradients, strict=False)):
        if isinstance(tensor, SimTensor) and gradient is not None and gradient.device != tensor.device:
            raise RuntimeError(
                f"invalid gradient at index {i} - expected device {tensor.device} but got {gradient.device}"
            )


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return new(torch.empty(0), current().gpus[0])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


def _empty_queue(engine: Callable[..., Any]) -> None:
    """Run something tiny, so that what a failed backward has left in the engine's queue, with its tensors, goes.

    The queue runs the node with the highest number first. Each thread numbers its nodes from 0, so that of a new thread
    comes after all that is left.
    """
    gpu = current().gpus[0]
    outputs: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: outputs.append(_Nothing.apply(new(torch.empty(0), gpu).requires_grad_())))
    thread.start()
    thread.join()
    gradients = (new(torch.empty(0), gpu),)
    with set_multithreading_enabled(False):
        engine(tuple(outputs), gradients, False, False, (), allow_unreachable=True, accumulate_grad=True)


_tasks = itertools.count()


@around
def submit(plain: Any, pool: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """``ThreadPoolExecutor.submit``. A task's number tells it from others, not the thread that happens to take it."""
    number = next(_tasks)

    def task() -> Any:
        if not exists():
            return fn(*args, **kwargs)
        with current().clock.task(number):
            return fn(*args, **kwargs)

    return plain(pool, task)
