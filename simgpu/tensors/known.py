"""With shapes only, small tensors of integers, and single numbers, that come from the host are kept on the side.

torch's distributed code sends such ones around, and reads them: how many parameters each rank has, their sizes, the
order of buckets, a vote, how many ranks have inputs left (``Join``). So it runs unchanged with ``numbers=False``. Only
where each rank has a GPU of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from simgpu._torch import schema_of, tree_map_only
from simgpu.cluster import current
from simgpu.tensors.schemas import tensors_in
from simgpu.tensors.tensor import SimTensor

MOST = 65536
"""Elements: larger ones are data."""


def values(tensor: SimTensor) -> torch.Tensor | None:
    """The numbers of a tensor, on the CPU, if they are known; None if only its shape is."""
    return tensor.__dict__.get("known")


def may_be(tensor: torch.Tensor) -> bool:
    """Is it of the kind whose numbers are kept?"""
    return not tensor.is_complex() and tensor.numel() <= (1 if tensor.is_floating_point() else MOST)


def kept(tensor: SimTensor) -> torch.Tensor:
    """Where the numbers of a tensor are kept, to be overwritten if they are not known."""
    if "known" not in tensor.__dict__:
        tensor.known = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
    return tensor.known


def forget(tensors: Iterable[SimTensor]) -> None:
    """They have got numbers that nobody knows."""
    for tensor in tensors:
        tensor.__dict__.pop("known", None)


def remember(tensor: SimTensor, source: torch.Tensor) -> None:
    """A CPU tensor has been copied into ``tensor``."""
    if current().between_ranks and not current().numbers:
        if not may_be(source) or source.is_meta:
            tensor.__dict__.pop("known", None)
        elif "known" in tensor.__dict__:
            tensor.known.copy_(source)  # views of it know too
        else:
            tensor.known = source.detach().expand(tensor.shape).to(tensor.dtype, copy=True)


def born(tensor: SimTensor, make: Callable[[], torch.Tensor]) -> None:
    """A new tensor, of which ``make`` makes the numbers."""
    if not current().numbers and may_be(tensor):
        tensor.known = make()


def _on_known(func: Any, args: tuple, kwargs: dict) -> Any:
    kwargs = {name: value for name, value in kwargs.items() if name != "device"}
    return func(*tree_map_only(SimTensor, values, args), **tree_map_only(SimTensor, values, kwargs))


def shaped(func: Any, args: tuple, kwargs: dict, inputs: list[SimTensor]) -> Any:
    """What an operator returns whose shape depends on numbers (``bincount``, ``nonzero``), as shapes; None: unknown."""
    if "out" in kwargs or not all("known" in tensor.__dict__ for tensor in inputs):
        return None
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), _on_known(func, args, kwargs))


def follow(func: Any, args: tuple, kwargs: dict, inputs: list[SimTensor], result: Any) -> None:
    """An operator has run on shapes: what comes out of known integers is known too, and what is written is not."""
    if all("known" in tensor.__dict__ for tensor in inputs):
        outputs = tensors_in(result)
        if outputs and all(isinstance(tensor, SimTensor) and may_be(tensor) for tensor in outputs):
            for tensor, numbers in zip(outputs, tensors_in(_on_known(func, args, kwargs)), strict=True):
                tensor.known = numbers
    elif schema_of(func).is_mutable:
        for written in (args[0], kwargs.get("out")):
            if isinstance(written, SimTensor):
                written.__dict__.pop("known", None)
