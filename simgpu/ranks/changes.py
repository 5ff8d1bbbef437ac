"""Every change that simulated GPUs of ranks make to torch's distributed code; ``simgpu.uninstall`` takes them back.

torch has no way to give a device that is written in Python an allocator of pinned memory, for which C++ asks under
DistributedDataParallel(find_unused_parameters=True), or static_graph=True. So, for such models only, the CPU's
``empty_strided`` gives ordinary memory instead, which counts as pinned.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.nn import functional as differentiable
from torch.distributed.tensor import DTensor

from simgpu import _torch, torch_module
from simgpu._torch import destroy
from simgpu.changes import around, on_uninstall, replace, replace_all
from simgpu.cluster import current, exists
from simgpu.ranks import dtensors, movement, operators
from simgpu.ranks.cluster import RankCluster
from simgpu.ranks.refusals import BACKEND, connect_refusals, of_other_ranks, without_nccl
from simgpu.ranks.works import after_backward, forget_unfinished
from simgpu.tensors import copies, dispatch
from simgpu.tensors.tensor import SimTensor
from simgpu.time.phases import in_backward


def connect() -> None:
    """From now on torch's collectives know simulated GPUs. A second call changes nothing."""
    if dispatch.communication:
        return
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu", "simgpu"])
    dispatch.communication.update(c10d=operators.run, _c10d_functional=operators.run_functional)
    on_uninstall(dispatch.communication.clear)
    for make in (_barrier, _init_process_group, _new_group, _split_group):
        _replace_in_dist(make.__name__[1:], make)
    lists = (f"{name}_object_list" for name in ("broadcast", "scatter", "recv"))
    for name in (*lists, "all_gather_object", "gather_object"):
        _replace_in_dist(name, of_other_ranks)
    replace(differentiable, "dist", lambda _: _LikeNccl())
    replace_all(_torch.ENGINES, _run_backward)
    replace(dist.Logger, "set_runtime_stats_and_log", _log_nothing)
    replace(torch.nn.parallel.DistributedDataParallel, "__init__", for_models_that_need_it)
    connect_refusals()
    movement.connect()
    replace(DTensor, "device", lambda _: property(_device))
    replace(DTensor, "to", _to)
    replace(_torch.ShardingPropagator, "propagate_op_sharding_non_cached", dtensors.one_of_each_kind)
    replace_all([_torch.RANDOM_TRACKER], lambda _: dtensors.Tracker())
    replace_all([_torch.FSDP_CHUNKS], _chunk_with_empty)
    replace_all([_torch.OFFLOAD], _to_host)


def _replace_in_dist(name: str, make: Callable[[Any], Any]) -> None:
    owners = dist, dist.distributed_c10d, dist.device_mesh  # (the last has them from when it was imported)
    replace_all([(owner, name) for owner in owners if hasattr(owner, name)], make)


def _make_group(asked: Any, _: Any) -> Any:
    """One gloo group, for tensors of the CPU and (their numbers) of simulated GPUs.

    Where one process stands for many, gloo connects those that are there, and what torch gets says nothing to nobody.
    """
    cluster: Any = current() if exists() else None
    size = asked.group_size
    ranks = asked.global_ranks_in_group or range(size)
    alone = isinstance(cluster, RankCluster) and cluster.store is not None
    there = cluster.processes_among(ranks) if alone else ranks
    gloo = None
    if len(there) > 1 or not alone:
        place = there.index(ranks[asked.group_rank])
        gloo = dist.ProcessGroupGloo(asked.store, place, len(there), timeout=asked.timeout)
        if len(there) == size:
            return gloo
    cluster.meetings[asked.group_id] = gloo
    return _torch.fake_group(asked.group_rank, size)


def _simulated(group: Any) -> bool:
    return exists() and current().between_ranks and BACKEND in dist.get_backend_config(group)


@around
def _barrier(plain: Any, group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None) -> Any:
    """torch would take the CPU's gloo, which knows no simulated time."""
    group = group or dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER or not _simulated(group):
        return plain(group, async_op, device_ids, timeout)
    before, group.bound_device_id = group.bound_device_id, torch.device("simgpu", 0)
    try:
        work = plain(group, async_op, None, timeout)
    finally:
        group.bound_device_id = before
    if not async_op:
        torch_module.synchronize()  # NCCL's keeps the host waiting, too
    return work


@around
def _init_process_group(plain: Any, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
    """With ``device_id`` torch would split groups, which gloo cannot."""
    if exists() and isinstance(cluster := current(), RankCluster):
        kwargs.pop("device_id", None)
        backend = without_nccl(backend or BACKEND, kwargs.get("pg_options"))
        forget_unfinished()
        if cluster.store is not None:
            args, kwargs = (), {"store": cluster.store, "rank": cluster.rank, "world_size": cluster.world_size}
            cluster.store = dist.PrefixStore("again", cluster.store)
    return plain(backend, *args, **kwargs)


@around
def _new_group(plain: Any, ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
    """All ranks make all groups, also those of others, who use the same network cards."""
    if ranks is not None and exists() and isinstance(cluster := current(), RankCluster):
        cluster.note_group(ranks)
    options = args[2] if len(args) > 2 else kwargs.get("pg_options")
    if len(args) > 1:
        args = args[0], without_nccl(args[1], options), *args[2:]
    else:
        kwargs["backend"] = without_nccl(kwargs.get("backend"), options)
    return plain(ranks, *args, **kwargs)


@around
def _split_group(
    plain: Any, parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, **options: Any
) -> Any:
    """NCCL splits a communicator; here each part is a new group of its own."""
    parent_pg = parent_pg or dist.group.WORLD
    without_nccl(None, options.get("pg_options"))
    if not split_ranks or not _simulated(parent_pg):
        return plain(parent_pg, split_ranks, timeout, **options)
    ranks = dist.get_process_group_ranks(parent_pg)
    parts = [[ranks[i] for i in part] for part in split_ranks]
    groups = [dist.new_group(part, timeout, use_local_synchronization=True) for part in parts]
    return next((group for group, part in zip(groups, parts, strict=True) if dist.get_rank() in part), None)


class _LikeNccl:
    """``torch.distributed``, for torch's differentiable collectives: their backward asks if the group is NCCL's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    @staticmethod
    def get_backend(group: Any = None) -> str:
        return dist.Backend.NCCL if _simulated(group or dist.group.WORLD) else dist.get_backend(group)


@around
def _run_backward(engine: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return engine(*args, **kwargs)
    finally:
        if not in_backward():
            after_backward()


def _device(tensor: DTensor) -> torch.device:
    """C++, whom a DTensor asks, calls every simulated GPU number 0."""
    local = _torch.local_part(tensor)
    return torch.Tensor.device.__get__(tensor) if local is tensor else local.device


@around
def _to(plain: Any, self: DTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """To the GPU where it is already: for C++ that is another one, and a copy would add up what is partial."""
    copy = kwargs.get("copy", False)
    parse: Any = _torch.parse_to  # (its stub does not say that each of the four may be None)
    device, dtype, _, memory_format = parse(*args, **{k: v for k, v in kwargs.items() if k != "copy"})
    if copy or memory_format is not None or device is None or (device.type, self.device.type) != ("simgpu",) * 2:
        return plain(self, *args, **kwargs)
    return self if dtype in (None, self.dtype) else plain(self, dtype)


@around
def _to_host(plain: Any, stager: Any, tensor: torch.Tensor, memo: dict, non_blocking: bool = False) -> torch.Tensor:
    """Asynchronous checkpoints copy storages to the host, byte by byte."""
    if not isinstance(tensor, SimTensor):
        return plain(stager, tensor, memo, non_blocking)
    memo[id(tensor)] = copy = tensor.detach().cpu()
    return copy


@around
def _chunk_with_empty(_plain: Any, tensor: torch.Tensor, num_chunks: int, dim: int) -> list[torch.Tensor]:
    """FSDP2's parts of a parameter. With thousands of ranks most are empty; none looks at more than its own."""
    parts = list(tensor.chunk(num_chunks, dim))
    return parts + [parts[0].new_empty(0)] * (num_chunks - len(parts))


@around
def _log_nothing(plain: Any, logger: Any) -> None:
    """DistributedDataParallel's logger would warn that it cannot measure times on this device."""
    if not (exists() and current().between_ranks):
        plain(logger)


_libraries: list[torch.library.Library] = []


@around
def for_models_that_need_it(plain: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """``DistributedDataParallel.__init__``, which looks whether the model will ask for pinned memory."""
    if kwargs.get("find_unused_parameters") or kwargs.get("static_graph"):
        _allow()
    plain(self, *args, **kwargs)


def _allow() -> None:
    if _libraries or not (exists() and current().between_ranks):
        return
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Overriding a previously registered kernel": yes
        library.impl("empty_strided", _empty_strided, "CPU")
    _libraries.append(library)
    on_uninstall(lambda: destroy(_libraries.pop()))


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, pin_memory: bool | None = None, **_: Any
) -> torch.Tensor:
    elements = 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    flat = torch.ops.aten.empty.memory_format([elements], dtype=dtype, device="cpu")
    if pin_memory:
        copies.count_as_pinned(flat)
    return flat.as_strided(size, stride)
