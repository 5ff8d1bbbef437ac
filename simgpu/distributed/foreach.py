"""The first step of an optimizer over many DTensors, without the minute that torch 2.13 takes to think about it.

For ``_foreach_…`` and ``_fused_…`` operators torch works out how to shard each tensor of the list by itself, 5 ms
each, and looks every time at all the others, which makes it quadratic: 50 s for 500 parameters. But a model has few
kinds of parameters. So it is asked about one of each kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any


def one_of_each_kind(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``ShardingPropagator.propagate_op_sharding_non_cached``, which is asked once for each kind."""

    @functools.wraps(plain)
    def propagate(self: Any, schema: Any) -> Any:
        kinds = _kinds(schema) if schema.op.name().startswith(("aten::_foreach_", "aten::_fused_")) else None
        if kinds is None:
            return plain(self, schema)
        firsts = [kinds.index(kind) for kind in range(max(kinds) + 1)]
        few = type(schema)(
            schema.op,
            tuple(_picked(arg, firsts, len(kinds)) for arg in schema.args_schema),
            {name: _picked(arg, firsts, len(kinds)) for name, arg in schema.kwargs_schema.items()},
            schema_info=schema.schema_info,
        )
        found = plain(self, few)
        if found.needs_redistribute:
            return plain(self, schema)
        output: Any = found.output_spec
        if isinstance(output, Sequence):
            same_type: Any = type(output)
            output = same_type(output[kind] for kind in kinds)
        return type(found)(output, schema)

    return propagate


def _lists(schema: Any) -> list[Any]:
    return [arg for arg in schema.args_schema if isinstance(arg, (list, tuple)) and arg]


def _kinds(schema: Any) -> list[int] | None:
    """For each place in the lists the number of its kind; None if lists differ in length, or all places in kind."""
    lists = _lists(schema)
    if not lists or len({len(each) for each in lists}) > 1:
        return None
    known: dict[Any, int] = {}
    kinds = []
    for together in zip(*lists, strict=True):
        key = tuple(one if hasattr(one, "placements") else type(one) for one in together)
        kinds.append(known.setdefault(key, len(known)))
    return kinds if len(known) < len(kinds) else None


def _picked(arg: Any, firsts: list[int], length: int) -> Any:
    if isinstance(arg, (list, tuple)) and len(arg) == length:
        return type(arg)(arg[first] for first in firsts)
    return arg
