"""What happens when an operator meets a tensor on a simulated GPU.

Every operator that autograd hands down (see ``simgpu.tensors.dispatch``) comes to ``run``, which

1. checks that all inputs are on one GPU, as CUDA does,
2. asks whether there is room for what it makes, also in the host's memory, where the numbers are,
3. runs it on the plain tensors,
4. counts the memory of what came out, by storage,
5. puts the work on the GPU's timeline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import psutil
import torch

from simgpu._torch import address_of, current_node, no_dispatch, on_wrapper_itself, share_storage, tree_map_only
from simgpu.cluster import Cluster, SimulatedGPU, current
from simgpu.memory import allocator as memory
from simgpu.memory.allocator import Allocation, readable, rounded
from simgpu.tensors import known, shapes
from simgpu.tensors.placement import check_lists, common_gpu, gpu_of_new_tensor, moved_if_guessed
from simgpu.tensors.schemas import MAY_READ_HOST_TENSORS, Call, Operator, operator_of, tensors_in
from simgpu.tensors.tensor import SimTensor, take_over_shape
from simgpu.time.launches import launch_foreach, launch_operator
from simgpu.time.phases import in_backward
from simgpu.torch_module import drawn

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
        storages = map(torch.Tensor.untyped_storage, tensors_in(out))
        made = {address_of(storage): rounded(storage.nbytes()) for storage in storages}
        for storage in map(torch.Tensor.untyped_storage, tensors_in([*meta, *options.values()])):
            made.pop(address_of(storage), None)
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


def run(func: Any, args: tuple, kwargs: dict) -> Any:
    """Check the devices, compute, count memory, note the time."""
    operator = operator_of(func)
    inputs: list[SimTensor] = []
    hosts: list[torch.Tensor] = []
    raw_args = [_unwrap(arg, inputs, hosts) for arg in args]
    raw_kwargs = {name: _unwrap(arg, inputs, hosts) for name, arg in kwargs.items()} if kwargs else {}
    cluster = current()
    asked = raw_kwargs.get("device")
    to_host, guess = False, None
    if not inputs:  # only empty lists or host tensors: nothing here is simulated
        raise NotImplementedError(f"{operator.name} did not get a tensor on a simulated GPU")
    gpu = common_gpu(operator, inputs, hosts, cluster)
    if asked is not None:
        asked = torch.device(asked)
        to_host = asked.type not in ("simgpu", "meta")
        if asked.type == "simgpu":
            if asked.index or not in_backward():  # backward's C++ says 0 and means the GPU of its input
                gpu, guess = gpu_of_new_tensor(asked)
            raw_kwargs["device"] = inputs[0].raw.device
    several = operator.foreach and any(tensor.allocation.memory is not gpu.memory for tensor in inputs)
    if several:
        check_lists(operator, args)
    if hosts and operator.packet in MAY_READ_HOST_TENSORS and not isinstance(args[0], SimTensor):
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the indexed tensor ({hosts[0].device})"
        )
    out, answer = None, None
    if operator.data_dependent and cluster.between_ranks and not cluster.numbers:
        out = known.shaped(func, args, kwargs, inputs)
    if out is None:
        out, answer = compute(operator, func, raw_args, raw_kwargs, gpu, cluster)
    if to_host:
        return out
    if "out" in raw_kwargs:
        _take_over_shapes(inputs)
    result = _wrap(out, inputs, gpu)
    if guess is None and all(tensor.allocation.provisional is not None for tensor in inputs):
        guess = inputs[0].allocation.provisional  # made of guesses only: no surer than they are
    if guess is not None:
        for tensor in tensors_in(result):
            tensor.allocation.provisional = guess
    if cluster.between_ranks and not cluster.numbers:
        known.follow(func, args, kwargs, inputs, result)
    if operator.metadata_changes:
        _repeat_on_wrapper(func, args, kwargs)
    if not operator.free:
        call = Call(operator, args, kwargs, inputs)
        if several:
            launch_foreach(call)
        else:
            launch_operator(call, out, result, gpu, answer)
    if in_backward() and operator.name in ("detach", "clone", "add_", "copy_"):
        _label_gradient(result)
    return result


def _take_over_shapes(tensors: list[SimTensor]) -> None:
    for tensor in tensors:
        if tensor.raw.shape != tensor.shape:
            take_over_shape(tensor)


def _label_gradient(result: Any) -> None:
    """What autograd's AccumulateGrad keeps is a gradient."""
    node: Any = current_node()
    if node is not None and isinstance(result, SimTensor) and "AccumulateGrad" in node.name():
        result.allocation.label.kind = memory.GRADIENTS
        if isinstance(node.variable, SimTensor) and not moved_if_guessed(result, node.variable.allocation.memory):
            raise RuntimeError(
                "a function returned an invalid gradient: expected device "
                f"{node.variable.device} but got {result.device}"
            )


def compute(
    operator: Operator, func: Any, args: Any, kwargs: dict, gpu: SimulatedGPU, cluster: Cluster
) -> tuple[Any, shapes.Answer | None]:
    """Run an operator on plain tensors, with clear words for what cannot be done.

    Returns:
        What it returns, and for shapes alone the answer that is remembered, if there is one.
    """
    if not cluster.numbers and operator.needs_numbers(args):
        raise RuntimeError(
            f"{operator.name} needs the numbers in a tensor, but this cluster keeps only shapes (numbers=False): "
            f"leave it out, or {cluster.way_to_numbers}"
        )
    try:
        if not cluster.numbers:
            return (func(*args, **kwargs), None) if operator.asks_anew else shapes.compute(func, args, kwargs)
        if not (func.is_view or operator.foreach):
            check(func, args, kwargs, gpu)
        if operator.random:
            return drawn(gpu, func, args, kwargs), None
        return func(*args, **kwargs), None
    except NotImplementedError as error:
        where = "CPU" if cluster.numbers else "torch's shape-only device"
        raise NotImplementedError(
            f"a simulated GPU cannot do {operator.name}, for which there is no kernel for the {where}: use another "
            f"operator, or compute it on the CPU (tensor.cpu()). torch says: {str(error).splitlines()[0][:200]}"
        ) from error


def _unwrap(arg: Any, inputs: list[SimTensor], hosts: list[torch.Tensor]) -> Any:
    kind = type(arg)
    if kind is SimTensor:
        inputs.append(arg)
        return arg.raw
    if kind is list or kind is tuple:
        return kind(_unwrap(each, inputs, hosts) for each in arg)
    if isinstance(arg, torch.Tensor):
        if isinstance(arg, SimTensor):
            inputs.append(arg)
            return arg.raw
        hosts.append(arg)
    return arg


def _wrap(out: Any, inputs: list[SimTensor], gpu: SimulatedGPU) -> Any:
    """What an operator returned, as tensors on the GPU: an input itself, a view of one, or something new."""
    if out is None:
        return None
    themselves = {id(tensor.raw): tensor for tensor in inputs}
    owners = {tensor.allocation.address: tensor.allocation for tensor in inputs}
    return _wrap_one(out, inputs, gpu, themselves, owners)


def _wrap_one(out: Any, inputs: list[SimTensor], gpu: SimulatedGPU, themselves: dict, owners: dict) -> Any:
    # Not a function inside _wrap: one that calls itself is a reference cycle, which would keep the tensors alive.
    if isinstance(out, (list, tuple)):
        wrapped = _parts(out, inputs)
        if wrapped is None:
            homes = _homes(out, inputs, gpu)
            wrapped = [_wrap_one(each, inputs, home, themselves, owners) for each, home in zip(out, homes, strict=True)]
        return type(out)(wrapped) if type(out) in (list, tuple) else tuple(wrapped)
    if not isinstance(out, torch.Tensor):
        return out
    if id(out) in themselves:
        return themselves[id(out)]
    if out.layout is not torch.strided or out.is_nested:
        raise NotImplementedError("a simulated GPU cannot hold sparse or nested tensors: keep them on the CPU")
    storage = out.untyped_storage()
    owner = owners.get(address_of(storage))
    if owner is None:
        owner = owners[address_of(storage)] = Allocation(gpu.memory, storage, memory.kind_now())
        return SimTensor(out, owner)
    if torch.is_inference_mode_enabled() and not out.is_inference():  # a view of an ordinary tensor is one, too
        with torch.inference_mode(False):
            return SimTensor(out, owner)
    return _same_storage([SimTensor(out, owner)], inputs)[0]


def _parts(outputs: Any, inputs: list[SimTensor]) -> list[SimTensor] | None:
    """Views of the one input, as ``chunk`` and ``split`` return them by the hundred; None for anything else."""
    if len(inputs) != 1 or torch.is_inference_mode_enabled():
        return None
    raw, owner = inputs[0].raw, inputs[0].allocation
    for out in outputs:
        if out is raw or not isinstance(out, torch.Tensor) or address_of(out.untyped_storage()) != owner.address:
            return None
    return _same_storage([SimTensor(out, owner) for out in outputs], inputs)


def _same_storage(views: list[SimTensor], inputs: list[SimTensor]) -> list[SimTensor]:
    """C++ shall know whose views they are: DistributedDataParallel asks whether a gradient lies in its bucket."""
    if views and current().between_ranks:
        base = next(tensor for tensor in inputs if tensor.allocation is views[0].allocation)
        with no_dispatch():
            for view in views:
                share_storage(view, base)
    return views


def _homes(outputs: Any, inputs: list[SimTensor], gpu: SimulatedGPU) -> list[SimulatedGPU]:
    """The GPU of each output: for a ``_foreach`` operator over several GPUs, that of the input beside it."""
    if len(inputs) >= len(outputs) > 1 and any(t.allocation.memory is not gpu.memory for t in inputs):
        return [current().gpus[tensor.gpu] for tensor in inputs[: len(outputs)]]
    return [gpu] * len(outputs)


def _repeat_on_wrapper(func: Any, args: tuple, kwargs: dict) -> None:
    """``t_``, ``unsqueeze_`` and the like change shapes: do it to the wrapper's shape too."""
    with on_wrapper_itself():
        func(*args, **kwargs)
