"""Simulated GPUs: the real torch code on several GPUs, on any computer.

    import simgpu
    cluster = simgpu.cluster(gpus_per_node=4, gpu="H100")      # from here on there are simgpu:0 … simgpu:3
    model = nn.DataParallel(model.to("simgpu:0"))              # the real class
    with simgpu.profile() as prof:
        model(batch).sum().backward()
    prof.elapsed, prof.peak_memory(0), prof.timeline(), prof.memory()

Write what you would write for "cuda:0"; only the device's name differs. Numbers are computed on the CPU, and equal the
CPU's bit for bit (recurrent networks and three optimizers: up to rounding). Memory, time and links are simulated:
memory by counting, time by a model (``costs``, ``transfers``, ``collectives``, and ``sharing`` where collectives run
beside kernels) with numbers from data sheets (``hardware``, ``utils.hardware.links``). All times are simulated seconds,
and the same program always gives the same ones.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from simgpu.api import cluster, device, region
from simgpu.cluster import Cluster, current
from simgpu.collectives import all_gather, all_reduce, broadcast, reduce_scatter
from simgpu.hardware import GPU, gpu
from simgpu.install import uninstall
from simgpu.profile import Profile, TraceEvent, profile
from simgpu.race_reports import Race, RaceError
from simgpu.races import Races, races
from simgpu.streams import Event, Stream
from simgpu.tensor import SimTensor
from simgpu.torch_module import on, stream, synchronize
from simgpu.transfers import pin

_OF_RANKS = {"join": "joining", "one_of": "joining"}


def __getattr__(name: str) -> Any:
    if name in _OF_RANKS:  # they need torch.distributed, which others need not wait for
        return getattr(import_module(f"simgpu.distributed.{_OF_RANKS[name]}"), name)
    raise AttributeError(f"module 'simgpu' has no attribute {name!r}")


__all__ = [
    "GPU",
    "Cluster",
    "Event",
    "Profile",
    "Race",
    "RaceError",
    "Races",
    "SimTensor",
    "Stream",
    "TraceEvent",
    "all_gather",
    "all_reduce",
    "broadcast",
    "cluster",
    "current",
    "device",
    "gpu",
    "join",
    "on",
    "one_of",
    "pin",
    "profile",
    "races",
    "reduce_scatter",
    "region",
    "stream",
    "synchronize",
    "uninstall",
]
