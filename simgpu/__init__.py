"""Simulated GPUs: the real torch code on several GPUs, on any computer.

    import simgpu
    cluster = simgpu.cluster(gpus_per_node=4, gpu="H100")      # from here on there are simgpu:0 … simgpu:3
    model = nn.DataParallel(model.to("simgpu:0"))              # the real class
    with simgpu.profile() as prof:
        model(batch).sum().backward()
    prof.elapsed, prof.peak_memory(0), prof.timeline(), prof.memory()

Write what you would write for "cuda:0"; only the device's name differs. Numbers are computed on the CPU, and equal the
CPU's bit for bit (recurrent networks, RMSNorm, three optimizers: up to rounding). Memory, time and links are simulated:
memory by counting, time by a model (``costs``, ``transfers``, ``collectives``, and ``sharing`` where collectives run
beside kernels) with numbers from data sheets (``hardware``, ``utils.hardware.links``). All times are simulated seconds,
and the same program always gives the same ones.

what a program uses
  api.py             ``cluster`` makes simulated GPUs
  cluster.py         nodes, GPUs and the links between them; which cluster there is now
  hardware/          what GPUs can do, from data sheets and measurements, with sources
  tensor.py          the tensor that lives on a simulated GPU
  streams.py         streams and events
  torch_module.py    what torch sees as ``torch.simgpu``
  random_state.py    random numbers, a generator for each GPU
  collectives.py     all-reduce and its kin, over tensors of one process
  regions.py         names for what they do, also those of torch's profiler and pipelines
  profile.py         what happened: times, FLOPs, memory, pictures; trace.py writes it for Perfetto, kineto.py as
                     torch.profiler does for CUDA
  races.py           finds work of two streams that nothing puts in order; race_reports.py says so to the reader
  distributed/       a GPU for each rank: ``join`` and ``one_of``
how operators get there
  install.py         every change to torch, and all of them taken back
  dispatch.py        where operators come in, and those that move data or need numbers
  operators.py       all others; overloads.py has what is the same at every call of one
  placement.py       on which GPU an operator runs and a new tensor lives
  room.py            is there room for what comes out?
  shapes.py          shapes without numbers, remembered; known.py keeps the few numbers that torch reads even then
  factories.py       new tensors
  copies.py          from device to device
  attention.py       fused attention, RMSNorm, recurrent cells; fused.py has kernels that only CUDA has
  autocast.py        which operators compute in which precision
  backward.py        autograd's threads
  optimizers.py      steps of optimizers, and their state
  parallel.py        what ``nn.DataParallel`` needs from C++
  saving.py          ``torch.save`` and ``torch.load``
  threads.py         pools of threads
time
  costs.py           what an operator costs; launches.py puts it on the timeline
  transfers.py       copies: which link they take, and who waits
  nccl.py            which algorithm and protocol NCCL would choose, and its time
  sharing.py         kernels beside a collective are slower
  clock.py           when each piece of work runs
  work.py            streams, links, lanes of the host, and the work itself
  phases.py          forward, backward or optimizer?
  happens_before.py  which work surely comes before which; accesses.py: who reads and writes which bytes
memory
  memory.py          who holds how many bytes, and what happens when there are not enough
  allocator.py       what torch's caching allocator keeps of it: "reserved"
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from simgpu.api import cluster, device
from simgpu.cluster import Cluster, current
from simgpu.collectives import all_gather, all_reduce, broadcast, reduce_scatter
from simgpu.hardware import GPU, gpu
from simgpu.install import uninstall
from simgpu.profile import Profile, TraceEvent, profile
from simgpu.race_reports import Race, RaceError
from simgpu.races import Races, races
from simgpu.regions import region
from simgpu.streams import Event, Stream
from simgpu.tensor import SimTensor
from simgpu.torch_module import on, stream, synchronize
from simgpu.transfers import pin

_ON_DEMAND = {
    "join": "distributed.joining",  # needs torch.distributed
    "one_of": "distributed.joining",
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
    "memory_at_peak", "memory_over_time", "on", "one_of", "pin", "profile", "races", "reduce_scatter", "region",
    "stream", "synchronize", "uninstall",
]  # fmt: skip
