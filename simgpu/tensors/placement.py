"""On which GPU an operator runs and a new tensor lives, and the error where several devices meet."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch.autograd import graph

from simgpu.cluster import Cluster, SimulatedGPU, current
from simgpu.memory import allocator as memory
from simgpu.tensors.schemas import MAY_READ_HOST_TENSORS, Operator
from simgpu.tensors.tensor import SimTensor, check_cluster


def check_lists(operator: Operator, args: tuple) -> None:
    """A ``_foreach`` operator takes lists of tensors; those that belong together must be on one GPU."""
    lists = [[t for t in arg if isinstance(t, SimTensor)] for arg in args if isinstance(arg, (list, tuple))]
    for together in zip(*(each for each in lists if each), strict=False):
        gpus = {tensor.gpu for tensor in together}
        if len(gpus) > 1:
            raise RuntimeError(_two_devices(operator, [f"simgpu:{gpu}" for gpu in sorted(gpus)]))


def common_gpu(
    operator: Operator, inputs: list[SimTensor], hosts: list[torch.Tensor], cluster: Cluster
) -> SimulatedGPU:
    """The GPU that all inputs are on. Raises what CUDA raises if there is more than one."""
    ledger = inputs[0].allocation.memory
    for tensor in inputs:
        other = tensor.allocation.memory
        if other.clock is not cluster.clock:
            check_cluster(tensor)
        if other is not ledger:
            ledger = _agree(operator, inputs)
    if hosts and operator.packet not in MAY_READ_HOST_TENSORS:
        for host in hosts:
            number = not host.dim() and operator.packet is not torch.ops.aten.stack
            if not number and host.numel() and not host.is_meta:
                raise RuntimeError(_two_devices(operator, [f"simgpu:{ledger.gpu}", str(host.device)]))
    return cluster.gpus[ledger.gpu]


def _agree(operator: Operator, inputs: list[SimTensor]) -> memory.Memory:
    """Inputs are on several GPUs: an error, unless one's place is C++'s guess (see ``gpu_of_new_tensor``)."""
    if operator.foreach:  # works tensor by tensor
        return inputs[0].allocation.memory
    certain = [tensor for tensor in inputs if not tensor.allocation.provisional]
    filled = [tensor for tensor in certain if tensor.numel()] or certain
    sure = {tensor.allocation.memory.gpu: tensor.allocation.memory for tensor in filled}
    if len(sure) != 1:
        names = sorted({t.allocation.memory.gpu for t in inputs})
        raise RuntimeError(_two_devices(operator, [f"simgpu:{gpu}" for gpu in (sorted(sure) or names)]))
    ledger = next(iter(sure.values()))
    for tensor in inputs:
        if tensor.numel() and not moved_if_guessed(tensor, ledger):
            raise RuntimeError(_two_devices(operator, [f"simgpu:{tensor.gpu}", f"simgpu:{ledger.gpu}"]))
    return ledger


def moved_if_guessed(tensor: SimTensor, ledger: memory.Memory) -> bool:
    """Move a tensor to that GPU if its place was only a guess. Is it there now?"""
    allocation = tensor.allocation
    if allocation.memory is ledger:
        return True
    if allocation.provisional is True or (allocation.provisional and allocation.provisional == _call_site()):
        allocation.move_to(ledger)
        return True
    return False


def _two_devices(operator: Operator, names: list[str]) -> str:
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{' and '.join(names[:2])}! (in {operator.name}; move one of them with .to(...))"
    )


def _caller() -> FrameType | None:
    """The frame of the user's code that calls, or of a library's above torch's operators. None: backward's C++ does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == _AUTOGRAD:  # backward: what is below has only called the engine
            return None
        if not name.startswith(_OWN_FOLDER) and not any(part in name for part in _NOBODYS):
            return frame
        frame = frame.f_back
    return None


def _call_site() -> Any:
    """Which call of the user's code is running: its frame and the position in it. True: none, C++ runs by itself.

    A frame's id says "the same call" only as long as that call runs, which is as long as it is asked for here: what
    C++ creates and combines within one operator. And it rests on torch's layout of files, for torch's own Python
    between the user's line and the operator must be skipped.
    """
    frame = _caller()
    return True if frame is None else (id(frame), frame.f_lasti)


_AUTOGRAD = graph.__file__
_NOBODYS = ("/torch/_", "/torch/library", "/torch/utils/_device")
_BETWEEN_RANKS = ("/torch/distributed/", "/torch/nn/parallel/")
_OWN_FOLDER = __file__.rpartition("/tensors/")[0] + "/"


def gpu_of_new_tensor(device: torch.device) -> tuple[SimulatedGPU, Any]:
    """The GPU of a new tensor for which there is only a device, and whether that is a guess.

    Operators written in C++ make helper tensors "on the device of the input", which they see as number 0. So a new
    tensor for number 0 is provisional: if the same call of the user's code combines it with tensors of another GPU, it
    moves there. Combined by another line, it is the error that CUDA raises. (On a rank, backward and torch's code for
    ranks mean the rank's own GPU: their C++ keeps what it makes.)
    """
    cluster = current()
    if device.index != 0:
        return cluster.gpus[cluster.index(device)], None
    caller = _caller()
    of_rank = caller is None or any(part in caller.f_code.co_filename for part in _BETWEEN_RANKS)
    return cluster.gpus[cluster.first if of_rank else 0], _call_site()
