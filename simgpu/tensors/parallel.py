"""What ``torch.nn.DataParallel`` needs from C++, for simulated GPUs: broadcast, scatter, gather and reduce.

A CPU build of torch has no ``torch._C._broadcast_coalesced``, ``_scatter`` and ``_gather``, and a CUDA build has them
for CUDA only. Everything above them (replicate, scatter, parallel_apply, gather, GatherBackward, …) is torch's own
code. These do what torch's csrc/cuda/comm.cpp does, memory included: parameters travel in flat buffers of up to
10 MB, and the replicas' parameters are views of those. Broadcast and reduce run as NCCL does them, as in torch's own
builds for CUDA.

And optimizers: their steps are a phase of their own, and what they keep is their state.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from simgpu._torch import flatten_dense, local_part, take_tensors
from simgpu.changes import around
from simgpu.cluster import current, exists
from simgpu.memory import allocator as memory
from simgpu.tensors import collectives, copies
from simgpu.tensors.copies import copy_from_host, copy_to
from simgpu.tensors.placement import moved_if_guessed
from simgpu.tensors.tensor import SimTensor, new
from simgpu.time import happens_before
from simgpu.time.phases import begin_step, in_backward
from simgpu.time.streams import Stream


def broadcast_coalesced(
    tensors: Sequence[SimTensor], gpus: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    """The tensors on every GPU of ``gpus``; on the first one, which has them, the tensors themselves."""
    cluster = current()
    places: dict[int, int] = {id(tensor): i for i, tensor in enumerate(tensors)}
    copies: list[list[Any]] = [[None] * len(tensors) for _ in gpus[1:]]
    for chunk in take_tensors(tensors, buffer_size):
        flat = flatten_dense(chunk)
        work = collectives.launch_collective("broadcast", [flat.gpu, *gpus[1:]], flat.nbytes, [flat], [])
        for copied, gpu in zip(copies, gpus[1:], strict=True):
            buffer = new(flat.raw.clone(), cluster.gpus[gpu], memory.PARAMETERS)
            buffer.allocation.last_write = work
            happens_before.launched(work, [], [buffer])
            for original, part in zip(chunk, _unflattened(buffer, chunk), strict=True):
                copied[places[id(original)]] = part
    return [list(tensors), *copies]


def _unflattened(buffer: SimTensor, like: Sequence[torch.Tensor]) -> Iterator[SimTensor]:
    """Views of a flat buffer, each with a version counter of its own (so one can change in place)."""
    start = 0
    for tensor in like:
        raw = buffer.raw.narrow(0, start, tensor.numel()).view(tensor.shape)
        yield SimTensor(raw, buffer.allocation)
        start += tensor.numel()


def broadcast(tensor: torch.Tensor, gpus: Sequence[int]) -> list[torch.Tensor]:
    """One tensor, also of the CPU, on every GPU of ``gpus``."""
    if not isinstance(tensor, SimTensor):
        return [copy_from_host(tensor, gpu) for gpu in gpus]
    return [copies[0] for copies in broadcast_coalesced([tensor], gpus, tensor.nbytes)]


def into(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int | None = None, *_: Any) -> Sequence[torch.Tensor]:
    """A tensor, or its parts along ``dim``, into tensors that are there."""
    parts = [tensor] * len(out) if dim is None else tensor.split([target.shape[dim] for target in out], dim)
    return [target.copy_(part) for target, part in zip(out, parts, strict=True)]


broadcast_out = scatter_out = into


def gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    """Tensors into the parts of one along ``dim``."""
    for part, source in zip(out.split([source.shape[dim] for source in tensors], dim), tensors, strict=True):
        part.copy_(source)
    return out


def scatter(
    tensor: torch.Tensor,
    gpus: Sequence[int],
    sizes: Sequence[int] | None,
    dim: int,
    streams: Sequence[Stream | None] | None,
) -> tuple[torch.Tensor, ...]:
    """Parts of a tensor on several GPUs. The part for the GPU that has it already is a view."""
    chunks = tensor.split(list(sizes), dim) if sizes else tensor.chunk(len(gpus), dim)
    parts = []
    for chunk, gpu, stream in zip(chunks, gpus, streams or [None] * len(gpus), strict=False):
        if isinstance(chunk, SimTensor):
            parts.append(chunk if chunk.gpu == gpu else copy_to(chunk, gpu))
            continue
        with stream or contextlib.nullcontext():
            parts.append(copy_from_host(chunk, gpu))
    return tuple(parts)


def gather(tensors: Sequence[SimTensor], dim: int, gpu: int | None) -> torch.Tensor:
    """One tensor on ``gpu`` (-1: on the CPU), made of parts from several GPUs."""
    cluster = current()
    if gpu == -1:
        return torch.cat([tensor.detach().cpu() for tensor in tensors], dim)
    target = cluster.current_index() if gpu is None else gpu
    kind = memory.OTHER if in_backward() else memory.ACTIVATIONS  # (autograd is off in here, so it cannot be asked)
    result = new(torch.cat([tensor.raw for tensor in tensors], dim), cluster.gpus[target], kind)
    for tensor in tensors:
        copies.between_gpus(cluster, tensor, result)
    return result


def reduce(inputs: Sequence[SimTensor], output: SimTensor, root: int = 0, **_: Any) -> None:
    """Sum of the inputs into ``output``, on the GPU of ``inputs[root]``."""
    for tensor in (*inputs, output):
        tensor.allocation.label.kind = memory.GRADIENTS
    output.raw.copy_(inputs[0].raw)
    for tensor in inputs[1:]:
        output.raw.add_(tensor.raw)
    gpus = [tensor.gpu for tensor in inputs]
    collectives.launch_collective("reduce", gpus, output.nbytes, list(inputs), [output])


def choosing(simulated: Callable[..., Any]) -> Callable[[Any], Any]:
    """A function that takes the simulated way for simulated tensors, and for CPU tensors on the way to them."""

    def make(original: Callable[..., Any] | None) -> Callable[..., Any]:
        def function(first: Any, *args: Any, **kwargs: Any) -> Any:
            tensor = first if isinstance(first, torch.Tensor) else first[0]
            chosen = simulated if original is None or tensor.device.type in ("simgpu", "cpu") else original
            return chosen(first, *args, **kwargs)

        return function

    return make


@around
def reduce_add_coalesced(plain: Any, inputs: Any, destination: Any = None, *args: Any, **kwargs: Any) -> Any:
    """``torch.nn.parallel.comm.reduce_add_coalesced``.

    The gradient of a replica that had no part in the loss is zeros, which autograd makes on what C++ takes for the
    replica's device: number 0. One such place is the destination's, if no other gradient is there.
    """
    first = [tensors[0] for tensors in inputs]
    if all(isinstance(tensor, SimTensor) for tensor in first):
        target = current().index(destination)
        guessed = [i for i, tensor in enumerate(first) if tensor.allocation.provisional]
        if guessed and all(tensor.gpu != target for tensor in first):
            for tensor in inputs[guessed[0]]:
                moved_if_guessed(tensor, current().gpus[target].memory)
    return plain(inputs, destination, *args, **kwargs)


@around
def has_nccl(plain: Any, tensors: Any) -> bool:
    """``torch.cuda.nccl.is_available``."""
    return isinstance(tensors[0], SimTensor) or plain(tensors)


@around
def copy_stream(plain: Any, device: torch.device) -> Any:
    """``torch.nn.parallel._functions._get_stream``: the stream that copies parts of a batch."""
    return current().gpus[current().index(device)].copy_stream if device.type == "simgpu" else plain(device)


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


@around
def group(plain: Any, tensorlists: list, with_indices: bool = False) -> Any:
    """Torch's grouping by device and type, which in C++ cannot tell simulated GPUs apart."""
    if not any(isinstance(tensor, SimTensor) for tensors in tensorlists for tensor in tensors):
        return plain(tensorlists, with_indices)
    groups: dict = {}
    for i, tensor in enumerate(tensorlists[0]):
        key = (tensor.device, tensor.dtype) if tensor is not None else (None, None)
        lists, indices = groups.setdefault(key, ([[] for _ in tensorlists], []))
        for grouped, theirs in zip(lists, tensorlists, strict=True):
            if theirs:
                grouped.append(theirs[i])
        if with_indices:
            indices.append(i)
    return groups
