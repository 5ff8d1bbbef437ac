"""Functional collectives (``torch.distributed._functional_collectives``), which DTensor and FSDP2 use.

Each makes its output and issues the collective of c10d; ``wait_tensor`` makes the current stream wait.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed import distributed_c10d as c10d

from simgpu._torch import AsyncCollectiveTensor, all_gather_base, group_named, packet_of, reduce_scatter_base, schema_of
from simgpu.ranks.cluster import here
from simgpu.ranks.works import stream_waits
from simgpu.tensors.schemas import arguments_of
from simgpu.tensors.tensor import SimTensor, new


def run_functional(func: Any, args: tuple, kwargs: dict) -> Any:
    """An operator of the namespace _c10d_functional has met a simulated tensor."""
    packet = packet_of(func).__name__
    values = arguments_of(func, args, kwargs)
    if packet == "wait_tensor":
        (tensor,) = args
        if tensor.allocation.last_write is not None:
            stream_waits(tensor.allocation.last_write)
        return tensor
    if packet == "_wrap_tensor_autograd":
        return AsyncCollectiveTensor(args[0])
    if "_coalesced" in packet:
        single = getattr(torch.ops._c10d_functional, packet.replace("_coalesced", "")).default
        rest = [values[each.name] for each in schema_of(func).arguments[1:]]
        return [run_functional(single, (each, *rest), {}) for each in values["inputs"]]
    if packet not in _ISSUED:
        raise NotImplementedError(f"simulated ranks cannot do the functional collective {packet}: use dist's own")
    return _ISSUED[packet](_group(values["group_name"]), values["input"], values)


def _group(name: Any) -> ProcessGroup:
    if isinstance(name, torch.ScriptObject):
        return ProcessGroup.unbox(name)
    return name if isinstance(name, ProcessGroup) else group_named(name)


def _empty(like: SimTensor, *shape: int) -> SimTensor:
    raw = torch.empty(shape, dtype=like.dtype, device=like.raw.device)
    return new(raw, here().own[0])


def _copy(tensor: SimTensor) -> SimTensor:
    return torch.ops.aten.clone.default(tensor, memory_format=torch.contiguous_format)


def _options(options: Any, values: dict) -> Any:
    if "reduce_op" in values:
        options.reduceOp = getattr(ReduceOp, values["reduce_op"].upper())
    if "src" in values:
        options.rootRank = values["src"]
    options.asyncOp = True
    return options


def _all_reduce(group: ProcessGroup, tensor: SimTensor, values: dict) -> SimTensor:
    group.allreduce([tensor], _options(c10d.AllreduceOptions(), values))
    return tensor


def _broadcast(group: ProcessGroup, tensor: SimTensor, values: dict) -> SimTensor:
    group.broadcast([tensor], _options(c10d.BroadcastOptions(), values))
    return tensor


def _all_gather(group: ProcessGroup, given: SimTensor, values: dict) -> SimTensor:
    tensor: Any = given.contiguous()
    rows = tensor.shape[0] if tensor.dim() else 1
    output = values.get("out")
    output = _empty(tensor, rows * values["group_size"], *tensor.shape[1:]) if output is None else output
    all_gather_base(group)(output, tensor, _options(c10d.AllgatherOptions(), {}))
    return output


def _reduce_scatter(group: ProcessGroup, given: SimTensor, values: dict) -> SimTensor:
    tensor: Any = given.contiguous()
    output = values.get("out")
    output = _empty(tensor, tensor.shape[0] // values["group_size"], *tensor.shape[1:]) if output is None else output
    reduce_scatter_base(group)(output, tensor, _options(c10d.ReduceScatterOptions(), values))
    return output


def _all_to_all(group: ProcessGroup, given: SimTensor, values: dict) -> SimTensor:
    tensor: Any = given.contiguous()
    outs, ins = list(values["output_split_sizes"]), list(values["input_split_sizes"])
    output = _empty(tensor, sum(outs), *tensor.shape[1:])
    group.alltoall_base(output, tensor, outs, ins, _options(c10d.AllToAllOptions(), {}))
    return output


_ISSUED = {
    "all_reduce": lambda group, tensor, values: _all_reduce(group, _copy(tensor), values),
    "all_reduce_": _all_reduce,
    "broadcast": lambda group, tensor, values: _broadcast(group, _copy(tensor), values),
    "broadcast_": _broadcast,
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_out": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_out": _reduce_scatter,
    "all_to_all_single": _all_to_all,
}
