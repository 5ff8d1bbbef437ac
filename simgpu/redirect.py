"""Programs written for real GPUs run on simulated ones as they are: "cuda" means "simgpu", and "nccl" means "simccl".

The program goes on to say "cuda", and is told "cuda" of its tensors, so that what it asks of a device comes out as on
real GPUs. On the way into torch every such name is rewritten: in functions that make tensors, in those that move
tensors and modules, and in classes that are told a kind of device. (A ``TorchFunctionMode`` would miss other threads,
and what runs inside of a function that it has let through, as backward is.)
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from simgpu import torch_module
from simgpu._torch import CUDA_INITS, DeviceContext, device_constructors
from simgpu.changes import around, replace
from simgpu.cluster import Cluster
from simgpu.ranks.refusals import BACKEND
from simgpu.tensors import known
from simgpu.tensors.tensor import SimTensor

_constructors = device_constructors()  # (torch keeps what it finds at its first use, which must not be ours)
_IN_TORCH = [
    *(
        name
        for name, function in vars(torch).items()
        if name.endswith("_like") or (callable(function) and function in _constructors)
    ),
    *("set_default_device", "get_autocast_dtype", "set_autocast_dtype", "is_autocast_enabled", "set_autocast_enabled"),
]
_METHODS = [name for name in vars(torch.Tensor) if name.startswith("new_")] + ["to", "pin_memory", "is_pinned"]
_TOLD_A_DEVICE: list[tuple[Any, str]] = [
    *((torch, name) for name in _IN_TORCH),
    *((torch.Tensor, name) for name in (*_METHODS, "simgpu")),
    *((SimTensor, name) for name in ("to", "new", "new_tensor")),
    *((nn.Module, name) for name in ("to", "to_empty", "simgpu")),
    *((owner, "__init__") for owner in (torch.autocast, torch.amp.GradScaler, DeviceMesh, DeviceContext)),
]


def redirect(cluster: Cluster, left_out: Callable[[str], None]) -> None:
    """From now on "cuda" means this cluster's GPUs, until ``simgpu.uninstall``.

    Args:
        left_out: told, in a sentence, what the program asks for and does not get.
    """
    cluster.as_cuda = True
    for place in _TOLD_A_DEVICE:
        replace(*place, _rewriting)
    for owner in (torch.Tensor, nn.Module):
        replace(owner, "cuda", functools.partial(_simulated_one, vars(owner)["simgpu"]))
    replace(SimTensor, "device", _device)
    replace(DTensor, "device", _device)
    replace(torch.Tensor, "is_cuda", _is_cuda)
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
        for name in module.__all__:
            if name in vars(torch_module):
                replace(module, name, functools.partial(_simulated_one, getattr(torch_module, name)))
    replace(torch.cuda, "is_bf16_supported", lambda _: lambda including_emulation=True: True)
    for name in ("range_push", "range_pop", "mark"):
        replace(torch.cuda.nvtx, name, lambda _: lambda *_: 0)
    for place in CUDA_INITS:
        replace(*place, lambda _: _refuse)
    replace(dist, "get_backend", _backend_of_real_gpus)
    replace(dist, "is_nccl_available", lambda _: lambda: True)
    replace(torch, "load", _load)
    replace(torch, "compile", lambda _: functools.partial(_compile, left_out))
    if not cluster.numbers:
        cluster.unknown = math.nan
        replace(SimTensor, "__bool__", _branching)
        replace(torch, "save", lambda _: functools.partial(_save, left_out))


def simulated(asked: Any) -> Any:
    """What stands for "cuda" in an argument; anything else as it is."""
    if isinstance(asked, torch.device) and asked.type == "cuda":
        return torch.device("simgpu") if asked.index is None else torch.device("simgpu", asked.index)
    return f"simgpu{asked[4:]}" if isinstance(asked, str) and (asked == "cuda" or asked.startswith("cuda:")) else asked


@around
def _rewriting(plain: Any, *args: Any, **kwargs: Any) -> Any:
    return plain(*map(simulated, args), **{name: simulated(value) for name, value in kwargs.items()})


def _simulated_one(ours: Any, _plain: Any) -> Any:
    return ours


def _asked_by_torch() -> bool:
    """Does torch's own code ask, or ours? It goes by the device's real name."""
    return sys._getframe(2).f_globals.get("__name__", "").partition(".")[0] in ("torch", "simgpu")


def _device(plain: property) -> property:
    def device(tensor: torch.Tensor) -> torch.device:
        found = plain.__get__(tensor)
        return torch.device("cuda", found.index) if found.type == "simgpu" and not _asked_by_torch() else found

    return property(device, plain.__set__, plain.__delete__)


def _is_cuda(plain: property) -> property:
    return property(lambda tensor: (tensor.device.type == "simgpu" and not _asked_by_torch()) or plain.__get__(tensor))


@around
def _backend_of_real_gpus(plain: Any, group: Any = None) -> str:
    return "nccl" if plain(group) == BACKEND else plain(group)


def _refuse(*_: Any) -> None:
    raise NotImplementedError("here the program asks for something of CUDA that simulated GPUs have not: leave it out")


@around
def _load(plain: Any, file: Any, map_location: Any = None, **kwargs: Any) -> Any:
    """Files say "cuda:0"; or "simgpu:0", if a simulated run has written them."""

    def place(storage: Any, location: Any) -> Any:
        if isinstance(map_location, dict):  # "cuda:1" for "cuda:0", say
            location = map_location.get(location, map_location.get(location.replace("simgpu", "cuda"), location))
        elif callable(map_location):
            found = map_location(storage, location.replace("simgpu", "cuda"))
            return storage if found is None else found
        return torch.serialization.default_restore_location(storage, simulated(location))

    direct = isinstance(map_location, str | torch.device)
    return plain(file, simulated(map_location) if direct else place, **kwargs)


def _compile(left_out: Callable[[str], None], model: Any = None, **options: Any) -> Any:
    left_out("torch.compile: operators run one by one, with the launches, the memory and the times of eager mode")
    if model is None:
        return functools.partial(_compile, left_out, **options)
    vars(model).setdefault("_orig_mod", model)  # which programs ask for, when they save
    return model


def _save(left_out: Callable[[str], None], *_args: Any, **_options: Any) -> None:
    left_out("torch.save: with shapes only there are no numbers to save, and files stay as they are")


@around
def _branching(plain: Any, tensor: SimTensor) -> bool:
    """An unknown number is nan for who prints it, which counts as true: not for who decides by it."""
    if known.values(tensor) is None:
        raise RuntimeError(
            "with shapes only, no tensor has a value to decide by (if, while, assert): leave it out, or give --numbers"
        )
    return plain(tensor)
