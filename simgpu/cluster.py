"""A simulated cluster: nodes, GPUs, the links between them; and which cluster there is now."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from simgpu.hardware import GPU
from simgpu.memory.allocator import Memory
from simgpu.time import happens_before
from simgpu.time.clock import Clock
from simgpu.time.sharing import Sharing
from simgpu.time.work import Port, Timeline
from utils.hardware.links import Link

NAMED_GPUS = 128
"""torch keeps a device's number in eight bits, so "simgpu:127" is the last one with a name."""


class SimulatedGPU:
    """One GPU of the cluster: its hardware, its memory, its streams and its ends of the links."""

    def __init__(
        self, index: int, node: int, model: GPU, clock: Clock, inside: Link, new_stream: Callable[[int], Any]
    ) -> None:
        self.index = index
        self.node = node
        self.model = model
        self.default_stream = new_stream(index)
        self.memory = Memory(index, model.memory_bytes, clock, self.default_stream, model.name)
        self.communication_stream = new_stream(index)
        self.copy_stream = new_stream(index)
        self.streams = [self.default_stream, self.communication_stream, self.copy_stream]
        for stream, use in zip(self.streams, ("default", "communication", "copy"), strict=True):
            stream.name = f"the {use} stream"
        self.random_state: torch.Tensor | None = None
        self.sharing = Sharing()
        self.shared = (self.sharing,)
        self.name = name = f"GPU {index}"
        self.alone = (index,)
        self._queue: tuple[Timeline] = (self.default_stream,)
        self.host_out, self.host_in = Port(f"{name} to host"), Port(f"host to {name}")
        self.peer_out, self.peer_in = Port(f"{name}, link out"), Port(f"{name}, link in")
        if inside.family == "PCIe":  # the same wires
            self.peer_out, self.peer_in = self.host_out, self.host_in

    def queue(self, stream: Timeline) -> tuple[Timeline]:
        """The stream alone, as work wants it: the same tuple as long as the stream is the same."""
        queue = self._queue
        if queue[0] is not stream:
            queue = self._queue = (stream,)
        return queue


class Cluster:
    """Simulated nodes and GPUs. Made by ``simgpu.cluster``.

    Attributes:
        world_nodes, world_size: nodes and GPUs in all, of which this process need not have all.
        rank_number, prefix: which rank this is, and how its things are named in traces: "rank 3, ".
        between_ranks: other processes have the other GPUs (``simgpu.join``), and torch's own distributed code runs.
        way_to_numbers: for who has shapes only, and needs numbers.
        as_cuda: the program says "cuda" for its GPUs (``simgpu.redirect``).
        unknown: what a program reads of a number that nobody knows. None: an error.
        close: called at the end of ``with simgpu.cluster(...)``.
        sharing: collectives take a part of the GPU from the kernels beside them (``simgpu.time.sharing``).

    Args:
        new_stream: makes a ``streams.Stream`` of a GPU, from its number.
    """

    between_ranks = False
    way_to_numbers = "make the cluster with numbers=True"
    sharing = True
    as_cuda = False
    unknown: float | None = None
    rank_number = 0
    prefix = ""
    close: Callable[[], None]

    def __init__(
        self,
        models: Sequence[GPU],
        nodes: int,
        inside: Link,
        network: Link,
        nics: int,
        numbers: bool,
        clock: Clock,
        new_stream: Callable[[int], Any],
    ) -> None:
        self.nodes = self.world_nodes = nodes
        self.world_size = len(models)
        self.gpus_per_node = len(models) // nodes
        self.inside = inside
        self.network = network
        self.nics_per_node = nics
        self.numbers = numbers
        self.pinned_bytes = 0
        self.clock = clock
        self.gpus = [
            SimulatedGPU(i, i // self.gpus_per_node, model, clock, inside, new_stream) for i, model in enumerate(models)
        ]
        for gpu in self.gpus:
            gpu.memory.current_stream = functools.partial(self.current_stream, gpu.index)
        self.network_out = [[Port(f"node {n}, card {i} out") for i in range(nics)] for n in range(nodes)]
        self.network_in = [[Port(f"node {n}, card {i} in") for i in range(nics)] for n in range(nodes)]
        self.several = len(self.gpus) > 1
        self.first = 0
        """The GPU that "simgpu" without a number means in a new thread."""
        self._local = threading.local()

    @property
    def own(self) -> list[SimulatedGPU]:
        """The GPUs that this process works with: all, unless each rank has one (``simgpu.join``)."""
        return self.gpus

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        """No simulated GPUs any more, unless another cluster has replaced this one."""
        if _current is self:
            self.close()

    def __len__(self) -> int:
        return len(self.gpus)

    def __repr__(self) -> str:
        where = "" if self.numbers else ", shapes only"
        return f"<simulated cluster: {self.description}{where}>"

    @property
    def description(self) -> str:
        """What it is, for captions: "2 nodes × 4 H100 SXM, NVLink 4 (H100), InfiniBand NDR 400 Gbit/s"."""
        names = dict.fromkeys(gpu.model.name for gpu in self.own)
        several = self.world_nodes > 1
        count = f"{self.world_nodes} nodes × {self.gpus_per_node}" if several else f"{self.world_size} ×"
        links = [self.inside.name] * (self.gpus_per_node > 1) + [self.network.name] * several
        return ", ".join([f"{count} {' and '.join(names)}", *links])

    def index(self, device: int | str | torch.device | None) -> int:
        """The number of a GPU, from a number, "simgpu:1", or a device; None and "simgpu": the current one.

        Raises:
            RuntimeError: there is no such GPU.
        """
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device):
            if not is_simulated(device.type):
                raise RuntimeError(f"{device} is no simulated GPU: use simgpu:0 to simgpu:{len(self) - 1}")
            device = device.index
        if device is None:
            return self.current_index()
        if not 0 <= device < len(self):
            if device < 0 and len(self) > NAMED_GPUS:
                raise RuntimeError(
                    f"invalid device ordinal: torch has names for GPUs 0 to {NAMED_GPUS - 1} only. For the others "
                    'write `with simgpu.on(200): …` and use the device "simgpu", the current one'
                )
            exist = f"GPUs, simgpu:0 to simgpu:{len(self) - 1}" if len(self) > 1 else "GPU, simgpu:0"
            raise RuntimeError(
                f"invalid device ordinal: simgpu:{device} does not exist. The cluster has {len(self)} {exist}"
            )
        return device

    def named(self, device: int | str | torch.device | None) -> int:
        """The number of a GPU that the program has named, not C++ (which calls every GPU number 0)."""
        return self.index(device)

    def current_index(self) -> int:
        """The GPU that "simgpu" without a number means, in this thread."""
        return getattr(self._local, "current", self.first)

    def set_current(self, gpu: int) -> None:
        """Make ``gpu`` the one that "simgpu" without a number means, in this thread."""
        self._local.current = gpu

    def current_stream(self, gpu: int | None = None) -> Any:
        """The ``streams.Stream`` that work on ``gpu`` joins, in this thread. (Its module stands above this one.)"""
        gpu = self.current_index() if gpu is None else gpu
        streams = getattr(self._local, "streams", None)
        if streams and gpu in streams:
            return streams[gpu]
        return self.gpus[gpu].default_stream

    def set_stream(self, stream: Any) -> None:
        """Work on the stream's GPU joins it from now on, in this thread."""
        if not hasattr(self._local, "streams"):
            self._local.streams = {}
        self._local.streams[stream.gpu] = stream

    @contextmanager
    def own_selection(self, gpu: int) -> Iterator[None]:
        """Inside, the current GPU is ``gpu``, as in autograd's thread for it.

        The streams are the caller's. (On CUDA each operator of backward runs in the stream of its forward, which is the
        same where a program does both inside one ``with stream``; and the caller's streams wait for it at the end.)
        """
        before = vars(self._local).copy()
        self._local.current = gpu
        self._local.streams = dict(before.get("streams", {}))
        try:
            yield
        finally:
            if happens_before.watching is not None:
                happens_before.watching.after_backward(self.current_stream(gpu) for gpu in range(len(self)))
            vars(self._local).clear()
            vars(self._local).update(before)

    def synchronize(self, gpu: int | None = None) -> None:
        """The host waits until one GPU (None: every GPU) has nothing left to do."""
        streams = [s for each in (self.gpus if gpu is None else [self.gpus[gpu]]) for s in each.streams]
        if happens_before.watching is not None:
            for stream in streams:
                happens_before.host_waits(happens_before.recorded(stream))
        self.clock.act(lambda lane: lane.reach(max(stream.time for stream in streams)), 0 if gpu is None else gpu)

    def now(self) -> float:
        """Simulated seconds at which every host lane and every GPU is done with what it has."""
        self.clock.settle()
        return max([self.clock.main.time, *(stream.time for gpu in self.gpus for stream in gpu.streams)])

    def path(self, source: int, target: int) -> tuple[Link, tuple[Port, ...]]:
        """The link from one GPU to another, and what a message keeps busy on its way."""
        a, b = self.gpus[source], self.gpus[target]
        if a.node == b.node:
            return self.inside, (a.peer_out, b.peer_in)
        return self.network, (self.network_out[a.node][self._card(a)], self.network_in[b.node][self._card(b)])

    def _card(self, gpu: SimulatedGPU) -> int:
        """The network card of its node that a GPU uses: they are shared out in order."""
        return gpu.index % self.gpus_per_node * self.nics_per_node // self.gpus_per_node


_current: Cluster | None = None
_NONE_YET = "there is no simulated cluster yet: call simgpu.cluster(gpus_per_node=4) first"
_why_none = _NONE_YET


def exists() -> bool:
    """Is there a simulated cluster?"""
    return _current is not None


def is_simulated(kind: str) -> bool:
    """Is this what the program calls simulated GPUs: "simgpu", or "cuda" where that means them?"""
    return kind == "simgpu" or (kind == "cuda" and _current is not None and _current.as_cuda)


def current() -> Cluster:
    """The cluster that exists now.

    Raises:
        RuntimeError: there is none yet.
    """
    if _current is None:
        raise RuntimeError(_why_none)
    return _current


def make_current(cluster: Cluster | None, why_none: str = _NONE_YET) -> None:
    """From now on this is the cluster that exists. None: there is none, and who asks is told why."""
    global _current, _why_none
    _current, _why_none = cluster, why_none
