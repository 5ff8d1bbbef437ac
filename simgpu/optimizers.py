"""Optimizers on simulated GPUs: their steps are a phase of their own, and what they keep is their state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from simgpu import memory
from simgpu._torch import local_part
from simgpu.cluster import current, exists
from simgpu.phases import begin_step
from simgpu.tensor import SimTensor


def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """What an optimizer allocates in its step and keeps is its state; the rest of the step is "other"."""
    begin_step(sys._getframe(1))
    if exists() and current().between_ranks:  # a DTensor holds a shard: only here it is known what for
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for tensor, kind in ((parameter, memory.PARAMETERS), (parameter.grad, memory.GRADIENTS)):
                    tensor = local_part(tensor)  # of a DTensor
                    if isinstance(tensor, SimTensor):
                        tensor.allocation.label.kind = kind


def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """What the optimizer has kept is known now."""
    for state in optimizer.state.values():
        for value in (state or {}).values():  # None: ZeroRedundancyOptimizer's, of what other ranks keep
            value = local_part(value)
            if isinstance(value, SimTensor):
                value.allocation.label.kind = memory.OPTIMIZER_STATE


def grouping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's grouping by device and type, which in C++ cannot tell simulated GPUs apart."""

    def group(tensorlists: list, with_indices: bool = False) -> Any:
        if not any(isinstance(tensor, SimTensor) for tensors in tensorlists for tensor in tensors):
            return original(tensorlists, with_indices)
        groups: dict = {}
        for i, tensor in enumerate(tensorlists[0]):
            key = (tensor.device, tensor.dtype) if tensor is not None else (None, None)
            lists, indices = groups.setdefault(key, ([[] for _ in tensorlists], []))
            for mine, theirs in zip(lists, tensorlists, strict=True):
                if theirs:
                    mine.append(theirs[i])
            if with_indices:
                indices.append(i)
        return groups

    return group
