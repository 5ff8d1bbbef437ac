"""The first step of an optimizer over many DTensors, without the minute that torch 2.13 takes to think about it.

For ``_foreach_…`` and ``_fused_…`` operators torch works out how to shard each tensor of the list by itself, 5 ms
each, and looks every time at all the others, which makes it quadratic: 50 s for 500 parameters. But a model has few
kinds of parameters. So it is asked about one of each kind.

Random operators on DTensors: every rank draws what one process would draw for the whole tensor, and keeps its shard.

So shards differ, replicas are alike, and a model that is started from "meta" under FSDP2 or tensor parallelism has the
parameters that one process gives it with the same seed, bit for bit. (CUDA promises the first two: there each rank goes
ahead in its generator by the number of elements that lie before its shard.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from simgpu._torch import OffsetBasedRNGTracker, schema_of, split_by, tree_map, tree_map_only
from simgpu.changes import around
from simgpu.cluster import current
from simgpu.torch_module import drawing, get_rng_state, set_rng_state


@around
def one_of_each_kind(plain: Any, propagator: Any, schema: Any) -> Any:
    """``ShardingPropagator.propagate_op_sharding_non_cached``, which is asked once for each kind."""
    kinds = _kinds(schema) if schema.op.name().startswith(("aten::_foreach_", "aten::_fused_")) else None
    if kinds is None:
        return plain(propagator, schema)
    firsts = [kinds.index(kind) for kind in range(max(kinds) + 1)]
    few = type(schema)(
        schema.op,
        tuple(_picked(arg, firsts, len(kinds)) for arg in schema.args_schema),
        {name: _picked(arg, firsts, len(kinds)) for name, arg in schema.kwargs_schema.items()},
        schema_info=schema.schema_info,
    )
    sharding = plain(propagator, few)
    if sharding.needs_redistribute:
        return plain(propagator, schema)
    output: Any = sharding.output_spec
    if isinstance(output, Sequence):
        same_type: Any = type(output)
        output = same_type(output[kind] for kind in kinds)
    return type(sharding)(output, schema)


def _kinds(schema: Any) -> list[int] | None:
    """For each place in the lists the number of its kind; None if lists differ in length, or all places in kind."""
    lists = [arg for arg in schema.args_schema if isinstance(arg, (list, tuple)) and arg]
    if not lists or len({len(each) for each in lists}) > 1:
        return None
    known: dict[Any, int] = {}
    kinds = []
    for together in zip(*lists, strict=True):
        key = tuple(argument if hasattr(argument, "placements") else type(argument) for argument in together)
        kinds.append(known.setdefault(key, len(known)))
    return kinds if len(known) < len(kinds) else None


def _picked(arg: Any, firsts: list[int], length: int) -> Any:
    if isinstance(arg, (list, tuple)) and len(arg) == length:
        return type(arg)(arg[first] for first in firsts)
    return arg


class Tracker(OffsetBasedRNGTracker):
    """What torch asks before each random operator on a DTensor. (Its own reads the state of CUDA's generators.)"""

    def __init__(self) -> None:
        self._use_distribute_region = True
        self._alike: Any = None  # the cluster on which all ranks have begun with rank 0's state

    @contextmanager
    def _distribute_region(self, spec: Any, generator: torch.Generator | None = None) -> Iterator[None]:
        if spec.mesh.device_type != "simgpu" or not current().numbers:  # shapes alone have nothing to draw
            yield
            return
        if self._alike is not current():
            self._alike = current()
            dist.broadcast(state := get_rng_state().to("simgpu"), 0)
            set_rng_state(state.cpu())
        drawing.draw = _Part(spec, {} if generator is None else {"generator": generator})
        try:
            yield
        finally:
            drawing.draw = None


class _Part:
    """Runs an operator on whole tensors; ``places`` are those of this rank's elements in the whole one."""

    def __init__(self, spec: Any, options: dict) -> None:
        self.whole, self.options = tuple(spec.shape), options
        places = torch.arange(math.prod(self.whole), device="cpu").view(self.whole)
        for size, part, placement in zip(spec.mesh.shape, spec.mesh.get_coordinate(), spec.placements, strict=True):
            if not (placement.is_replicate() or placement.is_partial()):
                places = split_by(placement)(places, size, with_padding=False)[0][part]
        self.places = places

    def __call__(self, func: Any, args: Any, kwargs: dict) -> Any:
        out = func(*tree_map(self._grown, args, is_leaf=self._is_shape), **kwargs, **self.options)
        out = tree_map_only(torch.Tensor, lambda tensor: tensor.flatten()[self.places], out)
        return args[0].copy_(out) if schema_of(func).is_mutable else out

    def _is_shape(self, arg: Any) -> bool:
        numbers = isinstance(arg, list | tuple) and all(type(each) is int for each in arg)
        return numbers and tuple(arg) == tuple(self.places.shape)

    def _grown(self, arg: Any) -> Any:
        """The whole shape for the shard's; and a whole tensor with the shard in its place."""
        if self._is_shape(arg):
            return self.whole
        if not isinstance(arg, torch.Tensor) or arg.shape != self.places.shape:
            return arg
        return arg.new_zeros(math.prod(self.whole)).index_put_((self.places,), arg).view(self.whole)
