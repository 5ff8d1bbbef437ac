"""Buckets: which parameters' gradients are reduced together, and the flat tensors that hold them.

Source: Li and others: PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._prims_common import is_non_overlapping_and_dense_or_false


class Handle(Protocol):
    """A collective that is under way."""

    def wait(self) -> Any:
        """Go on only when it is done."""


def plan_buckets(parameters: Sequence[Tensor], cap: float, first: float | None = None) -> list[list[int]]:
    """Which parameters share a bucket. Each bucket holds parameters of one type on one device.

    As torch does it: a bucket takes parameters until it has reached its cap, so it can end up larger than that.

    Args:
        parameters: in the order in which their gradients are expected.
        cap: bytes after which a bucket is full.
        first: the same for the first bucket, so that communication can begin early. None: ``cap``.

    Returns:
        For each bucket, in the order of launching, the indices of its parameters.
    """
    check_caps(cap, cap if first is None else first)
    full: list[list[int]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[int], int]] = {}
    limits: dict[tuple[torch.dtype, torch.device], float] = {}
    for index, parameter in enumerate(parameters):
        kind = (parameter.dtype, parameter.device)
        members, nbytes = open_buckets.pop(kind, ([], 0))
        members, nbytes = [*members, index], nbytes + parameter.nbytes
        if nbytes >= limits.get(kind, cap if first is None else first):
            full.append(members)
            limits[kind] = cap
        else:
            open_buckets[kind] = (members, nbytes)
    rest = [members for members, _ in open_buckets.values()]
    return sorted(full + rest, key=max)  # in the order in which they will be ready


def check_caps(*caps: float) -> None:
    if min(caps) <= 0:
        raise ValueError(f"a bucket's cap must be more than 0 bytes, not {min(caps)}")


@dataclass
class Slot:
    """A parameter's place in a bucket.

    Args:
        parameter: whose gradient it is.
        view: the part of the bucket's flat tensor that holds it, in the parameter's shape.
        filled: the gradient of this step is in it.
    """

    parameter: nn.Parameter
    view: Tensor
    filled: bool = False


class Bucket:
    """Gradients that are reduced together.

    Args:
        parameters: of one type, on one device.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        like = parameters[0]
        self.flat = torch.zeros(sum(one.numel() for one in parameters), dtype=like.dtype, device=like.device)
        parts = self.flat.split([one.numel() for one in parameters])
        self.slots = [Slot(one, _shaped(part, one)) for one, part in zip(parameters, parts, strict=True)]
        self.missing = len(self.slots)
        self.handle: Handle | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that an all-reduce of this bucket is given."""
        return self.flat.nbytes

    def reset(self) -> None:
        """Before a backward pass: nothing has come yet, and nothing of a pass that failed is under way any more."""
        self.wait()
        self.missing = len(self.slots)
        for slot in self.slots:
            slot.filled = False

    def wait(self) -> None:
        """Until the all-reduce, if one was launched, is done."""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.wait()


def _shaped(part: Tensor, parameter: nn.Parameter) -> Tensor:
    """A part of a bucket with the parameter's shape, and its layout in memory if it leaves no gaps (channels_last)."""
    if not parameter.is_contiguous() and is_non_overlapping_and_dense_or_false(parameter):
        return part.as_strided(parameter.shape, parameter.stride())
    return part.view(parameter.shape)
