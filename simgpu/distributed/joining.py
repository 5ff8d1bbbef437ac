"""``simgpu.join``: this process owns one simulated GPU of a cluster in which every rank has one."""

from __future__ import annotations

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

    Every rank calls it, with the same arguments. What follows is written as for "cuda" and "nccl". Under torchrun,
    LOCAL_RANK and its like in the environment follow ``nodes``: read them after this.

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
    told = False  # by torchrun, which rank this is
    if rank is None or world_size is None:
        if "RANK" not in os.environ:
            raise RuntimeError(
                "simgpu.join() gives a GPU to each of several ranks, and this process is none: start it with torchrun, "
                "or use simgpu.cluster(gpus_per_node=4), which simulates several GPUs in one process"
            )
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        told = True
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1)) if nodes is None else nodes
    cluster = _made(gpu, nodes, rank, world_size, False, numbers=numbers, network=network, **options)
    if told:
        _tell_of_nodes(cluster)
    return cluster


def _tell_of_nodes(cluster: RankCluster) -> None:
    """What torchrun has put into the environment follows, if it has started the ranks on fewer nodes than these."""
    of_nodes = {
        "LOCAL_RANK": cluster.local_rank,
        "LOCAL_WORLD_SIZE": cluster.gpus_per_node,
        "GROUP_RANK": cluster.rank // cluster.gpus_per_node,
        "GROUP_WORLD_SIZE": cluster.world_nodes,
    }
    os.environ.update({name: str(value) for name, value in of_nodes.items() if name in os.environ})


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
    cluster = api.cluster(1, world_size // nodes, gpu, network=network, make=make, **options)
    changes.connect()
    assert isinstance(cluster, RankCluster)
    return cluster
