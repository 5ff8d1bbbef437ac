"""``simgpu.join``: this process owns one simulated GPU of a cluster in which every rank has one."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from simgpu import _torch, api
from simgpu.ranks import changes
from simgpu.ranks.cluster import RankCluster
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
    by_torchrun = False  # it says which rank this is
    if rank is None or world_size is None:
        if "RANK" not in os.environ:
            raise RuntimeError(
                "simgpu.join() gives a GPU to each of several ranks, and this process is none: start it with torchrun, "
                "or use simgpu.cluster(gpus_per_node=4), which simulates several GPUs in one process"
            )
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        by_torchrun = True
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1)) if nodes is None else nodes
    cluster = made(gpu, nodes, rank, world_size, numbers=numbers, network=network, **options)
    if by_torchrun:
        _tell_of_nodes(cluster)
    return cluster


def _tell_of_nodes(cluster: RankCluster) -> dict[str, str]:
    """What torchrun has put into the environment follows, if it has started the ranks otherwise; what it was."""
    of_nodes = {
        "RANK": cluster.rank,
        "WORLD_SIZE": cluster.world_size,
        "LOCAL_RANK": cluster.local_rank,
        "LOCAL_WORLD_SIZE": cluster.gpus_per_node,
        "GROUP_RANK": cluster.rank // cluster.gpus_per_node,
        "GROUP_WORLD_SIZE": cluster.world_nodes,
    }
    before = {name: os.environ[name] for name in of_nodes if name in os.environ}
    os.environ.update({name: str(of_nodes[name]) for name in before})
    return before


@contextmanager
def one_of(
    world_size: int,
    gpu: Any = "H100",
    nodes: int | None = None,
    *,
    stages: int | None = None,
    network: str | links.Link | None = None,
    rank: int = 0,
    **options: Any,
) -> Iterator[RankCluster]:
    """One rank of a large cluster, alone in this process, with shapes only: ``with simgpu.one_of(512, nodes=64): …``

    For programs in which all ranks do the same, as under DistributedDataParallel and FSDP2: the others are taken to be
    ready when this one is. The process group is there already; it ends with the block.

    In a pipeline, each stage does something else. So with ``stages=p`` there are p processes (of torchrun, ``%%ranks``,
    …), of which each calls this, is the first rank of a stage and stands for all ``world_size / p`` of it. The pipeline
    is the first dimension of a mesh: ``init_device_mesh("simgpu", (p, data, tensor))``. Groups within a stage are as
    above; in the pipeline's, which has a process for each member, ranks really wait for one another; in those that have
    the same places of several stages, as the whole world has, the processes do, each for its members.

    Args:
        world_size: ranks of the cluster, each with a GPU; tried with up to 16,384.
        gpu, network, options: as for ``join``.
        nodes: None: eight GPUs on each node.
        stages: stages of a pipeline, as many as there are processes. The process group that these may have ends, and
            they have a new one after the block.
        rank: which of them this is; with stages, the environment says which (RANK is the stage's number).

    Raises:
        RuntimeError: this process has a process group.
        ValueError: the ranks cannot be shared out to the nodes, or to the stages, or these are not the processes.
        NotImplementedError: of a group of which only some members are processes, and not the same of each stage.
    """
    if dist.is_initialized() and stages is None:
        raise RuntimeError(
            "simgpu.one_of() makes a process group for one process that stands for many, and here is one already: use "
            "it outside of ranks, or end the group with dist.destroy_process_group()"
        )
    nodes = max(1, world_size // 8) if nodes is None else nodes
    each, had_group = world_size, dist.is_initialized()
    store: dist.Store = dist.HashStore()
    if stages is not None:
        stage, store = _stage(stages, world_size)
        each = world_size // stages
        rank = stage * each
    cluster = made(gpu, nodes, rank, world_size, numbers=False, network=network, each=each, store=store, **options)
    with cluster:
        before = {} if stages is None else _tell_of_nodes(cluster)
        dist.init_process_group(changes.BACKEND)
        try:
            yield cluster
        finally:
            os.environ.update(before)
            dist.destroy_process_group()
            _torch.forget_shardings()  # (torch remembers results on equal meshes, with the names of their groups)
    if had_group and stages:  # (not after an error: the others may not come)
        dist.init_process_group("gloo", store=dist.PrefixStore("after", store), rank=rank // each, world_size=stages)


_rendezvous = functools.cache(lambda: next(rendezvous("env://"))[0])


def _stage(stages: int, world_size: int) -> tuple[int, dist.Store]:
    """Which of them this process is, and where all find each other, in a place that they have not used before."""
    processes = int(os.environ.get("WORLD_SIZE", 0))
    if stages != processes or world_size % max(1, stages):
        raise ValueError(
            f"simgpu.one_of({world_size}, stages={stages}) needs a process for each stage (start {stages} with "
            f"torchrun or %%ranks), and here are {processes or 'none'}; and equally many ranks in each stage"
        )
    store = _torch.default_store() if dist.is_initialized() else _rendezvous()
    if dist.is_initialized():
        dist.destroy_process_group()
    return int(os.environ["RANK"]), dist.PrefixStore(f"one_of {(store.add('one_of', 1) - 1) // stages}", store)


def made(
    gpu: Any,
    nodes: int,
    rank: int,
    world_size: int,
    network: str | links.Link | None,
    each: int = 1,
    store: dist.Store | None = None,
    **options: Any,
) -> RankCluster:
    """The cluster of a rank, with torch's distributed code changed; ``each`` and ``store``: see ``RankCluster``."""
    if nodes < 1 or world_size % nodes:
        raise ValueError(f"{world_size} ranks cannot be shared out equally to {nodes} nodes")
    make = functools.partial(RankCluster, rank=rank, world_size=world_size, world_nodes=nodes, each=each, store=store)
    cluster = api.cluster(1, world_size // nodes, gpu, network=network, make=make, **options)
    changes.connect()
    _torch.forget_fake_tensors()
    assert isinstance(cluster, RankCluster)
    return cluster
