"""A simulated cluster: nodes, GPUs, the links between them, and the hosts that drive them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from utils.hardware.links import INFINIBAND_NDR, Link
from utils.simgpu import hardware
from utils.simgpu.clock import Clock, Port, Timeline
from utils.simgpu.hardware import GPU
from utils.simgpu.memory import Memory

if TYPE_CHECKING:
    from utils.draw import Picture

MAX_GPUS, MAX_NODES = 1024, 128
NAMED_GPUS = 128
"""torch keeps a device's number in eight bits, so "simgpu:127" is the last one with a name."""

LAUNCH_S = 10e-6
"""Assumed: what the host needs to launch an operator from Python (interpreter, dispatcher, driver)."""


class _Awaited:
    """What the host can wait for: something on a GPU that is done at a ``time``."""

    __slots__ = ()
    gpu: int
    time: float

    def synchronize(self) -> None:
        """The host waits until it is done."""

        def wait(lane) -> None:
            lane.time = max(lane.time, self.time)

        current().clock.act(wait, self.gpu)

    def query(self) -> bool:
        """Is it done, at this moment of simulated time?"""
        clock = current().clock
        clock.settle()
        return self.time <= clock.lane(self.gpu).time


class Stream(_Awaited, Timeline):
    """A queue of work on one simulated GPU, like ``torch.cuda.Stream``.

    Work of one stream runs in order; work of different streams can overlap.

    Args:
        device: the GPU, as a number, "simgpu:1" or a torch.device. None: the current one.
    """

    __slots__ = ("_outer", "gpu")

    def __init__(self, device: int | str | torch.device | None = None, *, _gpu: int | None = None) -> None:
        self.gpu = current().index(device) if _gpu is None else _gpu
        self._outer: list = []
        super().__init__(f"stream of GPU {self.gpu}")
        if _gpu is None:
            current().gpus[self.gpu].streams.append(self)

    def wait_stream(self, other: Stream) -> None:
        """Later work of this stream begins only when what ``other`` has now is done."""

        def wait(_lane) -> None:
            self.time = max(self.time, other.time)

        current().clock.act(wait, self.gpu)

    def record_event(self, event: Event | None = None) -> Event:
        """An event that happens when what is in the stream now is done."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Later work of this stream begins only after ``event``."""

        def wait(_lane) -> None:
            self.time = max(self.time, event.time)

        current().clock.act(wait, self.gpu)

    @property
    def device(self) -> torch.device:
        """The GPU that it belongs to."""
        return torch.device("simgpu", self.gpu)

    def __enter__(self) -> Stream:
        cluster = current()
        if self not in cluster.gpus[min(self.gpu, len(cluster) - 1)].streams:
            raise RuntimeError(
                "this stream belongs to an earlier simulated cluster, which simgpu.cluster(...) has replaced"
            )
        self._outer.append((cluster.current_index(), cluster.current_stream(self.gpu)))
        cluster.set_current(self.gpu)
        cluster.set_stream(self)
        return self

    def __exit__(self, *exc: object) -> None:
        gpu, stream = self._outer.pop()
        current().set_stream(stream)
        current().set_current(gpu)

    def __repr__(self) -> str:
        return f"<Stream of simulated GPU {self.gpu}>"


class Event(_Awaited):
    """A mark in a stream, like ``torch.cuda.Event``; ``elapsed_time`` is in milliseconds of simulated time."""

    def __init__(self, enable_timing: bool = False, **_ignored: object) -> None:
        self.time = 0.0
        self.gpu = 0

    def record(self, stream: Stream | None = None) -> None:
        """It happens when what is in ``stream`` (None: the current one) now is done."""
        stream = stream or current().current_stream()
        self.gpu = stream.gpu

        def note(lane) -> None:
            self.time = max(stream.time, lane.time)

        current().clock.act(note, self.gpu)

    def wait(self, stream: Stream | None = None) -> None:
        """Make ``stream`` (None: the current one) wait for it."""
        (stream or current().current_stream()).wait_event(self)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of simulated time from this event to ``end``."""
        current().clock.settle()
        return (end.time - self.time) * 1e3


class SimulatedGPU:
    """One GPU of the cluster: its hardware, its memory, its streams and its ends of the links."""

    def __init__(self, index: int, node: int, model: GPU, clock: Clock) -> None:
        self.index = index
        self.node = node
        self.model = model
        self.default_stream = Stream(_gpu=index)
        self.memory = Memory(index, model.memory_bytes, clock, self.default_stream, model.name)
        self.communication_stream = Stream(_gpu=index)
        self.copy_stream = Stream(_gpu=index)
        self.streams = [self.default_stream, self.communication_stream, self.copy_stream]
        self.random_state: torch.Tensor | None = None
        self.name = name = f"GPU {index}"
        self.peer_out, self.peer_in = Port(f"{name}, link out"), Port(f"{name}, link in")
        self.host_out, self.host_in = Port(f"{name} to host"), Port(f"host to {name}")


class Cluster:
    """Simulated nodes and GPUs. Made by ``simgpu.cluster``."""

    def __init__(
        self, models: Sequence[GPU], nodes: int, inside: Link, network: Link, nics: int, numbers: bool, clock: Clock
    ) -> None:
        self.nodes = nodes
        self.gpus_per_node = len(models) // nodes
        self.inside = inside
        self.network = network
        self.nics_per_node = nics
        self.numbers = numbers
        self.clock = clock
        self.gpus = [SimulatedGPU(i, i // self.gpus_per_node, model, clock) for i, model in enumerate(models)]
        self.node_out = [Port(f"node {node}, network out") for node in range(nodes)]
        self.node_in = [Port(f"node {node}, network in") for node in range(nodes)]
        self.tiny_graph: tuple | None = None  # see backend._drain
        self._local = threading.local()

    def __len__(self) -> int:
        return len(self.gpus)

    def __repr__(self) -> str:
        where = "" if self.numbers else ", shapes only"
        return f"<simulated cluster: {self.description}{where}>"

    @property
    def description(self) -> str:
        """What it is, for captions: "2 nodes × 4 H100 SXM, NVLink 4 (H100), InfiniBand NDR 400 Gbit/s"."""
        names = list(dict.fromkeys(gpu.model.name for gpu in self.gpus))
        count = f"{self.nodes} nodes × {self.gpus_per_node}" if self.nodes > 1 else f"{len(self)} ×"
        links = [self.inside.name] if self.gpus_per_node > 1 else []
        links += [self.network.name] if self.nodes > 1 else []
        return ", ".join([f"{count} {' and '.join(names)}", *links])

    def topology(self) -> Picture:
        """A picture of nodes, GPUs and links."""
        from utils import draw

        return draw.cluster_topology(
            self.nodes,
            self.gpus_per_node,
            self.gpus[0].model.name,
            self.inside if self.gpus_per_node > 1 else None,
            self.network if self.nodes > 1 else None,
            self.gpus[0].model.host,
        )

    def index(self, device: int | str | torch.device | None) -> int:
        """The number of a GPU, from a number, "simgpu:1", or a device; None and "simgpu": the current one.

        Raises:
            RuntimeError: there is no such GPU.
        """
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device):
            if device.type != "simgpu":
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

    def current_index(self) -> int:
        """The GPU that "simgpu" without a number means, in this thread."""
        return getattr(self._local, "current", 0)

    def set_current(self, gpu: int) -> None:
        """Make ``gpu`` the one that "simgpu" without a number means, in this thread."""
        self._local.current = gpu

    def current_stream(self, gpu: int | None = None) -> Stream:
        """The stream that work on ``gpu`` joins, in this thread."""
        gpu = self.current_index() if gpu is None else gpu
        streams = getattr(self._local, "streams", None)
        if streams and gpu in streams:
            return streams[gpu]
        return self.gpus[gpu].default_stream

    def set_stream(self, stream: Stream) -> None:
        """Work on the stream's GPU joins it from now on, in this thread."""
        if not hasattr(self._local, "streams"):
            self._local.streams = {}
        self._local.streams[stream.gpu] = stream

    def synchronize(self, gpu: int | None = None) -> None:
        """The host waits until one GPU (None: every GPU) has nothing left to do."""
        streams = [s for each in (self.gpus if gpu is None else [self.gpus[gpu]]) for s in each.streams]

        def wait(lane) -> None:
            lane.time = max([lane.time, *(stream.time for stream in streams)])

        self.clock.act(wait, 0 if gpu is None else gpu)

    def now(self) -> float:
        """Simulated seconds at which every host lane and every GPU is done with what it has."""
        self.clock.settle()
        return max([self.clock.main.time, *(stream.time for gpu in self.gpus for stream in gpu.streams)])

    def path(self, source: int, target: int) -> tuple[Link, tuple[Port, ...]]:
        """The link from one GPU to another, and what a message keeps busy on its way."""
        a, b = self.gpus[source], self.gpus[target]
        if a.node == b.node:
            return self.inside, (a.peer_out, b.peer_in)
        return self.network, (self.node_out[a.node], self.node_in[b.node])


_current: Cluster | None = None


def exists() -> bool:
    """Is there a simulated cluster?"""
    return _current is not None


def current() -> Cluster:
    """The cluster that exists now.

    Raises:
        RuntimeError: there is none yet.
    """
    if _current is None:
        raise RuntimeError("there is no simulated cluster yet: call simgpu.cluster(gpus_per_node=4) first")
    return _current


def cluster(
    nodes: int = 1,
    gpus_per_node: int = 4,
    gpu: str | GPU | Sequence[str | GPU] = "H100",
    *,
    numbers: bool = True,
    inside: Link | None = None,
    network: Link = INFINIBAND_NDR,
    nics_per_node: int | None = None,
    memory: int | None = None,
    launch_s: float = LAUNCH_S,
    backward_launch_s: float | None = None,
    gil: bool = True,
) -> Cluster:
    """Make simulated GPUs: from here on the devices "simgpu:0", "simgpu:1", … exist.

    A second call replaces the first cluster, with its clocks and memory. Tensors of the first one cannot be used any
    more; they say so.

    Args:
        nodes: machines, 1 to 128.
        gpus_per_node: GPUs in each, at least 1; at most 1,024 GPUs in all.
        gpu: their kind, such as "H100" (see ``simgpu.hardware``), or one for each GPU of the cluster.
        numbers: True: compute real numbers (on the CPU). False: only shapes, memory and time.
        inside: link between GPUs of a node. None: the GPU's NVLink, or PCIe where it has none.
        network: what one network card (NIC) between nodes does.
        nics_per_node: network cards of a node. None: one for each GPU.
        memory: bytes of memory of each GPU, if it should differ from the hardware's.
        launch_s: seconds that the host needs to launch an operator from Python.
        backward_launch_s: the same from autograd's threads, which run no Python. None: half of it (assumed).
        gil: threads that launch from Python take turns, as CPython's GIL makes them. False: they do not.

    Raises:
        ValueError: a number is out of range, or the kind of GPU is unknown (the nearest name is suggested).
    """
    from utils.simgpu import backend

    for name, value, most in (("nodes", nodes, MAX_NODES), ("gpus_per_node", gpus_per_node, MAX_GPUS)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ValueError(f"{name} must be a whole number from 1 to {most}, not {value!r}")
    count = nodes * gpus_per_node
    if count > MAX_GPUS:
        raise ValueError(f"{nodes} nodes × {gpus_per_node} GPUs are {count} GPUs: simulate at most {MAX_GPUS}")
    if nics_per_node is not None and nics_per_node < 1:
        raise ValueError(f"nics_per_node must be at least 1, not {nics_per_node}")
    if launch_s < 0 or (backward_launch_s or 0) < 0:
        raise ValueError("launch_s and backward_launch_s are seconds: they must be at least 0")
    kinds = [gpu] * count if isinstance(gpu, (str, GPU)) else list(gpu)
    if len(kinds) != count:
        raise ValueError(f"gpu names {len(kinds)} GPUs, but the cluster has {count}: give one name, or one for each")
    models = [hardware.gpu(kind) for kind in kinds]
    if memory is not None:
        models = [model.with_memory(memory) for model in models]
    backend.register()
    backward_launch_s = launch_s / 2 if backward_launch_s is None else backward_launch_s
    global _current
    _current = Cluster(
        models,
        nodes,
        inside or models[0].peer,
        network,
        nics_per_node or gpus_per_node,
        numbers,
        Clock(launch_s, backward_launch_s, gil),
    )
    return _current


@contextmanager
def region(name: str) -> Iterator[None]:
    """``with simgpu.region("F1"): …`` names the work inside; timelines show the name. Backward inside, too."""
    lane = current().clock.lane(current().current_index())
    before, lane.region = lane.region, name
    try:
        yield
    finally:
        lane.region = before
