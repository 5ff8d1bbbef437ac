"""Is there room for what an operator makes? Asked before the CPU computes the numbers, which take the host's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import psutil
import torch

from simgpu import shapes
from simgpu._torch import address_of, tree_map_only
from simgpu.cluster import SimulatedGPU
from simgpu.launches import tensors_in
from simgpu.memory import readable, rounded

ALWAYS = 2**28
"""Bytes that every host has left."""


def check(func: Any, args: Any, kwargs: dict, gpu: SimulatedGPU) -> None:
    """Before an operator runs on these plain tensors.

    Raises:
        torch.OutOfMemoryError: what it makes does not fit into the GPU.
        MemoryError: it does not fit into the host, where its numbers would be.
    """
    if 16 * _most(1, args) <= ALWAYS:
        return
    made: dict[int, int] = {}
    with contextlib.suppress(Exception):  # of an operator that is called wrongly, or has no shapes without numbers
        meta, options = tree_map_only(torch.Tensor, _on_meta, (list(args), kwargs))
        out, _ = shapes.compute(func, meta, {**options, "device": "meta"} if "device" in kwargs else options)
        made = {address_of(one): rounded(one.nbytes()) for one in map(torch.Tensor.untyped_storage, tensors_in(out))}
        for one in map(torch.Tensor.untyped_storage, tensors_in([*meta, *options.values()])):
            made.pop(address_of(one), None)
    nbytes = 0
    for size in made.values():
        gpu.memory.require(size, nbytes)
        nbytes += size
    if nbytes > ALWAYS and nbytes > psutil.virtual_memory().available:
        raise MemoryError(
            f"GPU {gpu.index} has room for {readable(nbytes)} more, but this computer, in whose memory the numbers of "
            "simulated GPUs are, has not: make the tensors smaller, or keep only shapes (numbers=False; --shapes)"
        )


def _most(most: int, values: Iterable[Any]) -> int:
    """All sizes multiplied: no operator makes more elements."""
    for value in values:
        if isinstance(value, torch.Tensor):
            most *= value.numel() or 1
        elif type(value) is int:
            most *= value * value or 1  # (``torch.eye`` makes a square)
        elif isinstance(value, list | tuple):
            most = _most(most, value)
    return most


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
