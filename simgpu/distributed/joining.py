"""``simgpu.join``: this process owns one simulated GPU of a cluster in which every rank has one."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from simgpu import api
from simgpu.distributed import changes
from simgpu.distributed.cluster import RankCluster
from utils.hardware import links


def join(
    gpu: Any = "H100",
    nodes: int | None = None,
    *,
    numbers: bool = True,
    network: str | links.Link | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    **options: Any,
) -> RankCluster:
    """Give this rank a simulated GPU, "simgpu:<local rank>". Then ``dist.init_process_group("simccl")``.

    Every rank calls it, with the same arguments. What follows is written as for "cuda" and "nccl".

    Args:
        gpu: kind of all GPUs.
        nodes: nodes that the ranks are shared out to, equally many on each. None: as torchrun says.
        numbers: False: only shapes, memory and time; then only metadata travels between the ranks.
        network: what one network card does: a link, or its name. None: what the GPU's maker puts beside it.
        rank, world_size: None: as torchrun says.
        options: ``inside``, ``nics_per_node``, ``memory``, ``launch_s``, …: see ``simgpu.cluster``.

    Raises:
        RuntimeError: nobody says which rank this is.
        ValueError: the ranks cannot be shared out, or a name is unknown.
    """
    if rank is None or world_size is None:
        if "RANK" not in os.environ:
            raise RuntimeError(
                "simgpu.join() gives a GPU to each of several ranks, and this process is none: start it with torchrun, "
                "or use simgpu.cluster(gpus_per_node=4), which simulates several GPUs in one process"
            )
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1)) if nodes is None else nodes
    return _made(gpu, nodes, rank, world_size, False, numbers=numbers, network=network, **options)


@contextmanager
def one_of(
    world_size: int,
    gpu: Any = "H100",
    nodes: int | None = None,
    *,
    network: str | links.Link | None = None,
    rank: int = 0,
    **options: Any,
) -> Iterator[RankCluster]:
    """One rank of a large cluster, alone in this process, with shapes only: ``with simgpu.one_of(512, nodes=64): …``

    For programs in which all ranks do the same, as under DistributedDataParallel and FSDP2: the others are taken to be
    ready when this one is. The process group is there already; it ends with the block.

    Args:
        world_size: ranks of the cluster, each with a GPU.
        gpu, network, options: as for ``join``.
        nodes: None: eight GPUs on each node.
        rank: which of them this is.

    Raises:
        RuntimeError: this process has a process group.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "simgpu.one_of() makes a process group for one process that stands for many, and here is one already: use "
            "it outside of ranks, or end the group with dist.destroy_process_group()"
        )
    nodes = max(1, world_size // 8) if nodes is None else nodes
    cluster = _made(gpu, nodes, rank, world_size, True, numbers=False, network=network, **options)
    with cluster:
        dist.init_process_group(changes.BACKEND)
        try:
            yield cluster
        finally:
            dist.destroy_process_group()


def _made(
    gpu: Any, nodes: int, rank: int, world_size: int, alone: bool, network: str | links.Link | None, **options: Any
) -> RankCluster:
    if nodes < 1 or world_size % nodes:
        raise ValueError(f"{world_size} ranks cannot be shared out equally to {nodes} nodes")
    make = functools.partial(RankCluster, rank=rank, world_size=world_size, world_nodes=nodes, alone=alone)
    cluster = api.cluster(1, world_size // nodes, gpu, network=named_link(network), make=make, **options)
    changes.connect()
    return cluster  # type: ignore[return-value]


def named_link(link: str | links.Link | None) -> links.Link | None:
    """The link with this name, or whose name begins so: "InfiniBand NDR"."""
    if not isinstance(link, str):
        return link
    found = [one for one in links.ALL if one.name.lower().startswith(link.lower())]
    if not found:
        names = [one.name for one in links.ALL]
        near = difflib.get_close_matches(link, names, 1, 0.3)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no link called {link!r}.{hint} Known: {', '.join(names)}")
    return found[0]
