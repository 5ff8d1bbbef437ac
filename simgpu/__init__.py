"""Simulated GPUs: the real torch code on several GPUs, on any computer.

    import simgpu
    cluster = simgpu.cluster(gpus_per_node=4, gpu="H100")      # from here on there are simgpu:0 … simgpu:3
    model = nn.DataParallel(model.to("simgpu:0"))              # the real class
    with simgpu.profile() as prof:
        model(batch).sum().backward()
    prof.elapsed, prof.peak_memory(0), prof.timeline(), prof.memory()

Write what you would write for "cuda:0"; only the device's name differs. Numbers are computed on the CPU, and equal the
CPU's bit for bit (recurrent networks, RMSNorm, three optimizers: up to rounding). Memory, time and links are simulated:
memory by counting, time by a model (``costs``, ``copies``, ``collectives``, ``nccl``) with numbers from data sheets
(``hardware``, ``utils.hardware.links``). All times are simulated seconds, and the same program always gives the same
ones.

what a program uses
  api.py             ``cluster`` makes simulated GPUs; cluster.py: nodes, GPUs and the links between them
  hardware/          what GPUs can do, from data sheets (``kinds.toml``) and measurements, with sources
  torch_module.py    what torch sees as ``torch.simgpu``, with a generator of random numbers for each GPU
  ranks/             a GPU for each rank: ``join`` and ``one_of``
  report/            what happened: profiles, traces, races
  command.py         ``python -m simgpu run``: an ordinary program on simulated GPUs; redirect.py: "cuda" means "simgpu"
how it is made
  tensors/           the tensor that lives on a simulated GPU, and what operators do with it
  time/              what operators and collectives cost, and when they run
  memory/            who holds how many bytes
  install.py         every change to torch; changes.py takes all of them back; _torch.py has torch's private names
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from simgpu.api import cluster, device
from simgpu.cluster import Cluster, current
from simgpu.hardware import GPU, gpu
from simgpu.install import uninstall
from simgpu.report.profile import Profile, TraceEvent, profile
from simgpu.report.races import Race, RaceError, Races, races
from simgpu.report.regions import region
from simgpu.tensors.collectives import all_gather, all_reduce, broadcast, reduce_scatter
from simgpu.tensors.copies import pin
from simgpu.tensors.tensor import SimTensor
from simgpu.time.streams import Event, Stream
from simgpu.torch_module import on, stream, synchronize

_ON_DEMAND = {
    "join": "ranks.joining",  # needs torch.distributed
    "one_of": "ranks.joining",
    "overlapped": "ranks.works",
    "MemorySeries": "memory.pictures",
    "memory_at_peak": "memory.pictures",
    "memory_over_time": "memory.pictures",
}
"""Names whose modules take time to import, for which others need not wait."""


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(import_module(f"simgpu.{_ON_DEMAND[name]}"), name)
    raise AttributeError(f"module 'simgpu' has no attribute {name!r}")


__all__ = [
    "GPU", "Cluster", "Event", "MemorySeries", "Profile", "Race", "RaceError", "Races", "SimTensor", "Stream",
    "TraceEvent", "all_gather", "all_reduce", "broadcast", "cluster", "current", "device", "gpu", "join",
    "memory_at_peak", "memory_over_time", "on", "one_of", "overlapped", "pin", "profile", "races", "reduce_scatter",
    "region", "stream", "synchronize", "uninstall",
]  # fmt: skip
