"""What an operator's schema says, looked up once for each overload; and the tensors among a call's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from simgpu._torch import packet_of, schema_of

aten = torch.ops.aten

_FREE = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.lift_fresh}
_FREE |= {aten.detach, aten._unsafe_view, aten._reshape_alias, aten.is_same_size, aten.lift, aten.alias}
MAY_READ_HOST_TENSORS = {aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_, aten._unsafe_index}
MAY_READ_HOST_TENSORS |= {aten._pack_padded_sequence_backward}
_MASKS = (torch.bool, torch.uint8)


class Operator:
    """What is the same at every call of one overload, looked up once."""

    __slots__ = (
        *("asks_anew", "data_dependent", "defaults", "foreach", "free", "metadata_changes", "name", "names"),
        *("packet", "random", "writes"),
    )

    def __init__(self, func: Any) -> None:
        self.packet = packet_of(func)
        self.name = self.packet.__name__
        self.free = func.is_view or self.packet in _FREE
        schema = schema_of(func).arguments
        self.names = [each.name for each in schema]
        self.defaults = {each.name: each.default_value for each in schema if each.has_default_value()}
        infos = enumerate(each.alias_info for each in schema)
        self.writes = [(i, self.names[i]) for i, info in infos if info and info.is_write]
        if self.packet is aten.native_batch_norm:  # running mean and variance, of which its schema says nothing
            self.writes += [(3, "running_mean"), (4, "running_var")]
        self.foreach = self.name.startswith("_foreach")
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.metadata_changes = torch.Tag.inplace_view in func.tags
        # Views must share their input's storage; the others change what they are given.
        self.asks_anew = self.free or self.metadata_changes or "out" in schema_of(func).overload_name
        self.data_dependent = (
            torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
        )

    def values(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Its arguments by name, defaults included."""
        return self.defaults | dict(zip(self.names, args, strict=False)) | kwargs

    def written(self, args: Any, kwargs: dict) -> list[Any]:
        """Which of its arguments it changes: tensors, and lists of them."""
        return [args[i] if i < len(args) else kwargs.get(name) for i, name in self.writes]

    def needs_numbers(self, args: Any) -> bool:
        """Does the shape of what comes out depend on numbers that go in? By an index it does not, by a mask it does."""
        if self.packet is aten.index or self.packet is aten._unsafe_index:
            return any(index is not None and index.dtype in _MASKS for index in args[1])
        return self.data_dependent


_operators: dict[Any, Operator] = {}


def operator_of(func: Any) -> Operator:
    """The facts about an overload."""
    operator = _operators.get(func)
    if operator is None:
        operator = _operators[func] = Operator(func)
    return operator


class Call(NamedTuple):
    """One call of an operator; ``inputs``: the simulated tensors among its arguments."""

    operator: Operator
    args: tuple
    kwargs: dict
    inputs: Sequence[Any]

    def values(self) -> dict[str, Any]:
        """Its arguments by name, defaults included."""
        return self.operator.values(self.args, self.kwargs)

    @property
    def changed(self) -> list[Any]:
        """Which of its arguments it changes: tensors, and lists of them."""
        return self.operator.written(self.args, self.kwargs)


def tensors_in(value: Any) -> list[Any]:
    """The tensors in a value: itself, or those in a list or tuple, however deep. (Callers know which are simulated.)"""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_in(each)]
    return []
