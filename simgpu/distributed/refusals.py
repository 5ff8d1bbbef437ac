"""What does not work on simulated GPUs of ranks, in a sentence that says what to do instead; and a check left out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from simgpu import install
from simgpu.cluster import current, exists
from simgpu.tensor import SimTensor

_IN_BF16 = ("bf16_compress_hook", "bf16_compress_wrapper_hook")


def connect() -> None:
    """Until ``simgpu.uninstall``."""
    install.replace(FullyShardedDataParallel, "__init__", _no_fsdp1)
    install.replace(nn.SyncBatchNorm, "forward", _no_synchronized_norm)
    install.replace(nn.parallel.DistributedDataParallel, "_check_comm_hook", _hooks_in_bf16)


def _no_fsdp1(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if exists() and current().between_ranks:
            _refuse(
                "FullyShardedDataParallel (FSDP1) reaches into storages, which simulated GPUs do not have: use "
                "fully_shard (FSDP2) from torch.distributed.fsdp, which replaces it"
            )
        plain(self, *args, **kwargs)

    return __init__


def _no_synchronized_norm(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(plain)
    def forward(self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
        if not (isinstance(input, SimTensor) and self.training):
            return plain(self, input)
        return _refuse(
            "SyncBatchNorm has kernels for real GPUs only: on simulated ones use BatchNorm, which normalizes on each "
            "rank by itself, or GroupNorm or LayerNorm, which need no other rank"
        )

    return forward


def _hooks_in_bf16(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def _check_comm_hook(self: Any, hook: Any) -> None:
        """torch looks for NCCL before it allows bf16; gloo adds up in bf16, too."""
        if not (exists() and current().between_ranks and getattr(hook, "__name__", "") in _IN_BF16):
            plain(self, hook)

    return _check_comm_hook


def _refuse(sentence: str) -> NoReturn:
    raise NotImplementedError(sentence)
