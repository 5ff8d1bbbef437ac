"""What does not work on simulated GPUs of ranks, in a sentence that says what to do instead; and a check left out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from simgpu import _torch
from simgpu.changes import around, replace
from simgpu.cluster import current, exists
from simgpu.tensors.tensor import SimTensor

_IN_BF16 = ("bf16_compress_hook", "bf16_compress_wrapper_hook")
_FSDP1 = (
    "FullyShardedDataParallel (FSDP1) reaches into storages, which simulated GPUs do not have: use fully_shard (FSDP2) "
    "from torch.distributed.fsdp, which replaces it"
)
_OPTIONS = (
    "options of ProcessGroupNCCL say how NCCL runs on real GPUs, and simulated ones go by its own choices: leave "
    "pg_options out"
)
_SYMMETRIC_MEMORY = (
    "symmetric memory, and with it asynchronous tensor parallelism, lets a GPU's kernels read other GPUs' memory, as "
    "simulated ones cannot: use the collectives of torch.distributed"
)


def connect_refusals() -> None:
    """Until ``simgpu.uninstall``."""
    replace(FullyShardedDataParallel, "__init__", _refusing(_FSDP1))
    replace(nn.SyncBatchNorm, "forward", _no_synchronized_norm)
    replace(*_torch.CHECK_COMM_HOOK, _hooks_in_bf16)
    replace(dist, "ProcessGroupNCCL", _with_options)
    for name in ("enable_symm_mem_for_group", "get_symm_mem_workspace", "empty", "rendezvous", "get_mem_pool"):
        replace(_torch.symmetric_memory, name, _refusing(_SYMMETRIC_MEMORY))


def without_nccl(backend: Any, options: Any = None) -> Any:
    """A process group's backend as the program names it; one for real GPUs is refused, as are options."""
    if options is not None and exists() and current().between_ranks:
        _refuse(_OPTIONS)
    if exists() and current().between_ranks and "nccl" in str(backend).lower():
        if current().as_cuda:
            return BACKEND
        raise ValueError(
            f"this rank's GPU is simulated: where a program for real ones says {str(backend)!r}, write 'simccl' (which "
            "takes tensors of the CPU, too), or leave the backend out"
        )
    return backend


@around
def of_other_ranks(plain: Any, *args: Any, **kwargs: Any) -> Any:
    """Objects from others: a root's, which one rank knows only if it is the root; all stages', which none knows."""
    cluster: Any = current() if exists() else None
    if getattr(cluster, "store", None) is not None:
        signature = inspect.signature(plain)
        given = signature.bind(*args, **kwargs).arguments
        group: Any = given.get("group") or dist.group.WORLD
        meeting, unknown = cluster.meeting_of(group), ""
        if "src" not in signature.parameters:
            unknown = "all stages" if meeting is not None else ""
        else:
            in_group = given.get("group_src")
            root = given.get("src") or 0 if in_group is None else dist.get_global_rank(group, in_group)
            unknown = f"rank {root}" if root != dist.get_rank() else ""
        if unknown and meeting is not group:
            _refuse(f"{plain.__name__} gets objects from {unknown}: {cluster.way_to_numbers}")
    return plain(*args, **kwargs)


def _with_options(plain: Any) -> Any:
    """``dist.ProcessGroupNCCL``, which a build for the CPU has not."""
    return plain or SimpleNamespace(Options=_refusing(_OPTIONS)(object))


def _refusing(sentence: str) -> Callable[[Any], Any]:
    @around
    def refused(plain: Any, *args: Any, **kwargs: Any) -> Any:
        return _refuse(sentence) if exists() and current().between_ranks else plain(*args, **kwargs)

    return refused


@around
def _no_synchronized_norm(plain: Any, self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
    if not (isinstance(input, SimTensor) and self.training):
        return plain(self, input)
    return _refuse(
        "SyncBatchNorm has kernels for real GPUs only: on simulated ones use BatchNorm, which normalizes on each "
        "rank by itself, or GroupNorm or LayerNorm, which need no other rank"
    )


@around
def _hooks_in_bf16(plain: Any, self: Any, hook: Any) -> None:
    """torch looks for NCCL before it allows bf16; gloo adds up in bf16, too."""
    if not (exists() and current().between_ranks and getattr(hook, "__name__", "") in _IN_BF16):
        plain(self, hook)


def _refuse(sentence: str) -> NoReturn:
    raise NotImplementedError(sentence)


BACKEND = "simccl"
"""What stands where a program for real GPUs says "nccl"."""
