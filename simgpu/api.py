"""``simgpu.cluster`` makes simulated GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from simgpu import hardware
from simgpu.cluster import Cluster, current, exists, make_current
from simgpu.hardware import GPU
from simgpu.install import install, uninstall
from simgpu.time.clock import Clock
from simgpu.time.streams import Stream
from utils.hardware.links import Link

MAX_GPUS, MAX_NODES = 1024, 128

LAUNCH_S = 10e-6
"""Assumed: what the host needs to launch an operator from Python (interpreter, dispatcher, driver)."""
GIL_SHARE = 0.3
"""The part of it that is Python's and holds the GIL: ``benchmarks/simgpu_overhead.py`` measures it. In the rest,
assumed to need no GIL, torch's dispatcher and the driver work: torch lets go of the GIL before it calls them."""


def cluster(  # noqa: PLR0913
    nodes: int = 1,
    gpus_per_node: int = 4,
    gpu: str | GPU | Sequence[str | GPU] = "H100",
    *,
    numbers: bool = True,
    inside: str | Link | None = None,
    network: str | Link | None = None,
    nics_per_node: int | None = None,
    memory: int | None = None,
    launch_s: float = LAUNCH_S,
    gil_s: float | None = None,
    backward_launch_s: float | None = None,
    gil: bool = True,
    sharing: bool = True,
    make: Callable[..., Cluster] = Cluster,
) -> Cluster:
    """Make simulated GPUs: from here on the devices "simgpu:0", "simgpu:1", … exist.

    A second call replaces the first cluster, with its clocks and memory. Tensors of the first one cannot be used any
    more; they say so. ``simgpu.uninstall()``, or the end of ``with simgpu.cluster(...):``, takes the devices away again
    and leaves torch as it was.

    Args:
        nodes: machines, 1 to 128.
        gpus_per_node: GPUs in each, at least 1; at most 1,024 GPUs in all.
        gpu: their kind, such as "H100" (see ``simgpu.hardware``), or one for each GPU of the cluster.
        numbers: True: compute real numbers (on the CPU). False: only shapes, memory and time.
        inside: link between GPUs of a node, or its name, "NVLink 4". None: the GPU's NVLink, or PCIe where it has none.
        network: what one network card (NIC) between nodes does: a link, or its name, "InfiniBand NDR". None: what its
            maker puts beside this kind of GPU.
        nics_per_node: network cards of a node. None: as many as its maker puts there, for an H100 one for each GPU.
        memory: bytes of memory of each GPU, if it should differ from the hardware's.
        launch_s: seconds that the host needs to launch an operator from Python.
        gil_s: seconds of those in which a thread holds CPython's GIL. None: 3 tenths (see ``GIL_SHARE``).
        backward_launch_s: the same as ``launch_s`` from autograd's threads, which run no Python. None: half of it
            (assumed).
        gil: threads that launch from Python take turns in those ``gil_s``. False: they do not.
        sharing: kernels that run beside a collective are slower: it takes some of the GPU's multiprocessors and of its
            memory's bandwidth (see ``simgpu.time.sharing``). False: it takes nothing.
        make: how the cluster comes to life; ``simgpu.join`` makes one of which this process has one GPU.

    Raises:
        ValueError: a number is out of range, or a name is unknown (the nearest is suggested), or that of several links.
    """
    for name, value, most in (("nodes", nodes, MAX_NODES), ("gpus_per_node", gpus_per_node, MAX_GPUS)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ValueError(f"{name} must be a whole number from 1 to {most}, not {value!r}")
    count = nodes * gpus_per_node
    if count > MAX_GPUS:
        raise ValueError(f"{nodes} nodes × {gpus_per_node} GPUs are {count} GPUs: simulate at most {MAX_GPUS}")
    if nics_per_node is not None and nics_per_node < 1:
        raise ValueError(f"nics_per_node must be at least 1, not {nics_per_node}")
    if gil_s is None or not gil:
        gil_s = GIL_SHARE * launch_s if gil else 0.0
    if not 0 <= gil_s <= launch_s or (backward_launch_s or 0) < 0:
        raise ValueError(
            "launch_s, gil_s and backward_launch_s are seconds, at least 0, and gil_s is a part of launch_s"
        )
    kinds = [gpu] * count if isinstance(gpu, (str, GPU)) else list(gpu)
    if len(kinds) != count:
        raise ValueError(f"gpu names {len(kinds)} GPUs, but the cluster has {count}: give one name, or one for each")
    models = [hardware.gpu(kind) for kind in kinds]
    if memory is not None:
        models = [model.with_memory(memory) for model in models]
    install()
    backward_launch_s = launch_s / 2 if backward_launch_s is None else backward_launch_s
    made = make(
        models,
        nodes,
        models[0].peer if inside is None else hardware.link(inside),
        models[0].network if network is None else hardware.link(network),
        nics_per_node or max(1, round(gpus_per_node * models[0].nics_per_gpu)),
        numbers,
        Clock(launch_s, gil_s, backward_launch_s),
        Stream.of_gpu,
    )
    made.sharing, made.close = sharing, uninstall
    make_current(made)
    return made


def device(index: int) -> torch.device:
    """GPU ``index`` as a device, so that the same code runs on simulated GPUs and on real ones.

    For example::

        if torch.cuda.device_count() < 4:  # else the next lines use the real ones
            simgpu.cluster(gpus_per_node=4)
        model = nn.DataParallel(model.to(simgpu.device(0)), [simgpu.device(i) for i in range(4)])

    Args:
        index: number of the GPU: "simgpu:index" where there is a simulated cluster, else "cuda:index".

    Raises:
        RuntimeError: there is no such GPU, simulated or real.
    """
    if exists():
        return torch.device("simgpu", current().index(index))
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        real = f"has {count} real GPU{'s' * (count > 1)}" if count else "has no real GPU"
        raise RuntimeError(
            f"there is no GPU {index}: no simulated cluster has been made (simgpu.cluster(gpus_per_node=4) makes one), "
            f"and this machine {real}"
        )
    return torch.device("cuda", index)
