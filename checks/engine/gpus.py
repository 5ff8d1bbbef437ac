"""Simulated GPUs around a learner's calls: what is copied, computed and held on each of them, as plain data."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed.tensor  # a simulated GPU asks for it in its first steps: half a second, so before a fork
from torch import nn

import simgpu
from simgpu.memory.allocator import rounded
from simgpu.time.phases import COMMUNICATION
from utils.ranks.locate import looking

__all__ = ["begin", "go_on", "held", "place", "plain", "put", "raw", "rounded", "seen", "unordered"]
Facts = dict[str, Any]


@functools.cache  # once in a process
def begin() -> None:
    """Simulated GPUs, and the threads that autograd makes for them."""
    simgpu.cluster(gpus_per_node=2)
    x = torch.ones(1, device="simgpu:0", requires_grad=True)
    x.to("simgpu:1").sum().backward()
    gc.collect()
    gc.freeze()  # what is there now need not be looked through again


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Where its numbers are: a tensor on a simulated GPU wraps one on the CPU."""
    return getattr(tensor, "raw", tensor)


def place(tensor: torch.Tensor) -> str:
    """Where a tensor is: "GPU 1", or "host"."""
    return f"GPU {tensor.get_device()}" if tensor.device.type == "simgpu" else "host"


def plain(thing: Any) -> Facts:
    """What a learner's function has returned: a tensor with its numbers, or only which kind of thing it is."""
    if not isinstance(thing, torch.Tensor):
        return {"kind": type(thing).__name__}
    about = {"place": place(thing), "gradient": thing.requires_grad, "leaf": thing.is_leaf}
    return {"kind": "tensor", "value": raw(thing).detach().clone(), "memory": raw(thing).data_ptr()} | about


def put(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a module to a GPU before a learner's code sees it: new parameters, the same names, ties, hooks and numbers.

    (``Module.to`` of a process' first model imports a second of torch.)
    """
    moved: dict[torch.Tensor, torch.Tensor] = {}
    for part in module.modules():
        tensors: Any
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor not in moved:
                    there = tensor.detach().to(device)
                    moved[tensor] = nn.Parameter(there, tensor.requires_grad) if tensors is part._parameters else there
                    moved[tensor]._backward_hooks = tensor._backward_hooks
                tensors[name] = None if tensor is None else moved[tensor]
    return module


@contextlib.contextmanager
def seen() -> Iterator[Facts]:
    """What happens on the GPUs in the ``with`` block.

    Returns:
        ``copies``: bytes by link, {"GPU 0 → GPU 1": 64, "host → GPU 1": 8}; ``flops``: by phase, of each GPU;
        ``events``: [phase, GPUs, place, start, end, FLOPs, bytes] of each matrix product and each copy; ``spans``: when
        each GPU that computes in forward begins and ends; ``peak``: the most bytes that each GPU held beside what was
        there before; ``waits``: how often the host waited until a GPU was done; ``pauses``: until a stream or an event.
    """
    found: Facts = {"waits": 0, "pauses": 0}
    before, gpus = held(), torch.simgpu  # type: ignore[attr-defined]

    def counting(what: str, wait: Any) -> Any:
        def counted(*arguments: Any) -> None:
            found[what] += 1
            wait(*arguments)

        return counted

    with simgpu.profile() as profile, contextlib.ExitStack() as stack:
        for kind, what in ((type(simgpu.current()), "waits"), (gpus.Stream, "pauses"), (gpus.Event, "pauses")):
            stack.enter_context(mock.patch.object(kind, "synchronize", counting(what, kind.synchronize)))
        yield found
    events = profile.events
    found["copies"] = _copies(events)
    found["flops"] = {
        phase: [sum(e.flops for e in events if e.phase == phase and e.gpus[0] == gpu) for gpu in range(len(before))]
        for phase in ("forward", "backward")
    }
    found["events"] = [
        [e.phase, list(e.gpus), e.place, e.start, e.end, e.flops, e.nbytes]
        for e in events
        if e.flops or e.phase == COMMUNICATION
    ]
    found["spans"] = {}
    for event in events:
        if event.phase == "forward" and event.flops:
            first, last = found["spans"].get(event.gpus[0], (event.start, event.end))
            found["spans"][event.gpus[0]] = (min(first, event.start), max(last, event.end))
    found["peak"] = [profile.peak_memory(gpu) - was for gpu, was in enumerate(before)]


def held() -> list[int]:
    """The bytes that are held on each GPU now, when nothing is left to be collected."""
    gc.collect()
    with looking:
        return [gpu.memory.allocated for gpu in simgpu.current().gpus]


def _copies(events: list[Any]) -> dict[str, int]:
    """A collective between p GPUs counts for each of the p − 1 that receive, or send."""
    total: dict[str, int] = {}
    for event in events:
        if event.phase != COMMUNICATION:
            continue
        root, *others = event.gpus
        links = [event.place]
        if event.place == "collective":
            links = [f"GPU {root} → GPU {other}" for other in others]
            if event.name == "reduce":
                links = [f"GPU {other} → GPU {root}" for other in others]
        for link in links:
            total[link] = total.get(link, 0) + event.nbytes
    return total


def go_on(tensors: Iterable[Any]) -> None:
    """What whoever called does next, in the streams that are current: these are read, a loss and gradients, say.

    (Inside of ``seen()``, too: when that ends, the host has waited for everything.)
    """
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "simgpu":
            tensor.detach().sum()


def unordered(races: Any) -> list[str]:
    """Of what ``simgpu.races`` has found: work of two streams on the same memory, and none waits for the other.

    (Memory that is given to a new tensor too early, ``record_stream``, is not asked for in the labs.)
    """
    return [f"{race.first}; {race.second}" for race in races if race.kind == "order"]
