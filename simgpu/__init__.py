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
  api.py             ``cluster`` makes simulated GPUs
  regions.py         names for what they do, also those of torch's profiler and pipelines
  cluster.py         nodes, GPUs and the links between them; which cluster there is now
  hardware/          what GPUs can do, from data sheets (``kinds.toml``) and measurements, with sources
  tensor.py          the tensor that lives on a simulated GPU
  streams.py         streams and events
  torch_module.py    what torch sees as ``torch.simgpu``, with a generator of random numbers for each GPU
  collectives.py     all-reduce and its kin, over tensors of one process
  profile.py         what happened: times, FLOPs, memory; memory_pictures.py draws it, trace.py writes it for Perfetto,
                     kineto.py as torch.profiler does for CUDA
  races.py           finds work of two streams that nothing puts in order, and says so to the reader
  command.py         ``python -m simgpu run``: an ordinary program on simulated GPUs, and what its steps took (steps.py)
  redirect.py        "cuda" means "simgpu" there
  distributed/       a GPU for each rank: ``join`` and ``one_of``
how operators get there
  install.py         every change to torch, and all of them taken back; _torch.py has torch's private names
  dispatch.py        where operators come in, those that move data or need numbers, and new tensors
  operators.py       all others, if there is room for what comes out
  placement.py       on which GPU an operator runs and a new tensor lives
  shapes.py          shapes without numbers, remembered; known.py keeps the few numbers that torch reads even then
  copies.py          from device to device: which link they take, and who waits
  attention.py       fused attention, RMSNorm, recurrent cells; fused.py has kernels that only CUDA has
  autocast.py        which operators compute in which precision
  backward.py        autograd's threads, and pools of threads
  parallel.py        what ``nn.DataParallel`` and optimizers need from C++
  saving.py          ``torch.save`` and ``torch.load``
time
  costs.py           what an operator costs; launches.py puts it on the timeline
  nccl.py            which algorithm and protocol NCCL would choose, its time, and what it leaves of a GPU meanwhile
  clock.py           when each piece of work runs, and in which phase of a step
  work.py            streams, links, lanes of the host, and the work itself
  happens_before.py  which work surely comes before which, and who reads and writes which bytes
memory
  memory.py          who holds how many bytes, what happens when there are not enough, and what is "reserved"
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from simgpu.api import cluster, device
from simgpu.cluster import Cluster, current
from simgpu.collectives import all_gather, all_reduce, broadcast, reduce_scatter
from simgpu.copies import pin
from simgpu.hardware import GPU, gpu
from simgpu.install import uninstall
from simgpu.profile import Profile, TraceEvent, profile
from simgpu.races import Race, RaceError, Races, races
from simgpu.regions import region
from simgpu.streams import Event, Stream
from simgpu.tensor import SimTensor
from simgpu.torch_module import on, stream, synchronize

_ON_DEMAND = {
    "join": "distributed.joining",  # needs torch.distributed
    "one_of": "distributed.joining",
    "overlapped": "distributed.works",
    "MemorySeries": "memory_pictures",
    "memory_at_peak": "memory_pictures",
    "memory_over_time": "memory_pictures",
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
