"""Simulated GPUs: the real torch code on several GPUs, on any computer.

    from utils import simgpu
    cluster = simgpu.cluster(gpus_per_node=4, gpu="H100")      # from here on there are simgpu:0 … simgpu:3
    model = nn.DataParallel(model.to("simgpu:0"))              # the real class
    with simgpu.profile() as prof:
        model(batch).sum().backward()
    prof.elapsed, prof.peak_memory(0), prof.timeline(), prof.memory()

Write what you would write for "cuda:0"; only the device's name differs. Numbers are computed on the CPU, and equal the
CPU's bit for bit (recurrent networks and three optimizers: up to rounding). Memory, time and links are simulated:
memory by counting, time by a model (``costs``, ``transfers``, ``collectives``) with numbers from data sheets
(``hardware``, ``utils.hardware.links``). All times are simulated seconds, and the same program always gives the same
ones.
"""

from __future__ import annotations

import torch

from utils.simgpu import backend as _backend
from utils.simgpu.cluster import Cluster, Event, Stream, cluster, current, region
from utils.simgpu.collectives import all_gather, all_reduce, broadcast, reduce_scatter
from utils.simgpu.hardware import GPU, gpu
from utils.simgpu.operators import SimTensor
from utils.simgpu.profile import Profile, profile
from utils.simgpu.transfers import pin

on = _backend.on
stream = _backend.stream
synchronize = _backend.synchronize

__all__ = [
    "GPU",
    "Cluster",
    "Event",
    "Profile",
    "SimTensor",
    "Stream",
    "all_gather",
    "all_reduce",
    "broadcast",
    "cluster",
    "current",
    "device",
    "gpu",
    "on",
    "pin",
    "profile",
    "reduce_scatter",
    "region",
    "stream",
    "synchronize",
]


def device(index: int, *, prefer_real: bool = False) -> torch.device:
    """GPU ``index`` as a device: "simgpu:index".

    Args:
        index: number of the GPU.
        prefer_real: "cuda:index" if this machine has that many real GPUs.
    """
    if prefer_real and torch.cuda.device_count() > index:
        return torch.device("cuda", index)
    return torch.device("simgpu", current().index(index))


if not torch.cuda.is_available():  # on a machine with real GPUs torch hears of "simgpu" only when a cluster is made
    _backend.register()
