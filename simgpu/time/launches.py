"""An operator's way onto its GPU's timeline: its costs, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from simgpu.cluster import Cluster, SimulatedGPU, current
from simgpu.tensors.schemas import Operator, tensors_in
from simgpu.tensors.shapes import Answer
from simgpu.tensors.tensor import SimTensor
from simgpu.time import costs, happens_before
from simgpu.time.phases import phase_now
from simgpu.time.work import Kernel, Work

aten = torch.ops.aten


def launch_operator(
    operator: Operator,
    inputs: list[SimTensor],
    args: tuple,
    kwargs: dict,
    out: Any,
    gpu: SimulatedGPU,
    cluster: Cluster,
    result: Any,
    answer: Answer | None = None,
) -> None:
    """Put an operator on its GPU's timeline. ``result`` is what came out, on the GPU (``out``: as plain tensors).

    Args:
        answer: where the costs of such a call are kept, if they are.
    """
    where = (gpu.model, *costs.settings())
    known = None if answer is None else answer.costs
    if known is not None and known[0][0] is where[0] and known[0][1:] == where[1:]:
        kernel = known[1]
    else:
        kernel = _kernel(operator, inputs, args, kwargs, out, gpu)
        if answer is not None:
            answer.costs = where, kernel
    launched = launch_kernel(operator.name, kernel, inputs, gpu)
    for tensor in tensors_in(result if result is not None else args[0]):
        tensor.allocation.last_write = launched
    if happens_before.watching is not None:
        _note(launched, operator, args, kwargs, inputs, tensors_in(result))
    if operator.needs_numbers(args):  # how large its output is must be known on the host
        cluster.synchronize(gpu.index)


def _kernel(
    operator: Operator, inputs: list[SimTensor], args: tuple, kwargs: dict, out: Any, gpu: SimulatedGPU
) -> Kernel:
    outputs = tensors_in(out) or tensors_in(operator.written(args, kwargs))  # lists in place: nothing is returned
    work = costs.counted(operator.packet, args, kwargs, out)
    into = kwargs.get("out")  # only written
    read = inputs if into is None else [tensor for tensor in inputs if tensor is not into]
    moved = costs.traffic(operator.packet, args, read, outputs)
    kind = costs.kind_of_number(operator.packet, inputs[0].dtype) if work.flops else ""
    layout = 0  # in kernels of their own
    if work.products and gpu.model.on_tensor_cores(kind):
        layout = costs.layout_bytes(operator.packet, args, read, outputs)
    return costs.kernel(gpu.model, work, kind, moved, layout)


def _note(work: Work, operator: Operator, args: tuple, kwargs: dict, inputs: list[SimTensor], made: list) -> None:
    """Somebody looks for races: what it reads and writes."""
    changed = [tensor for tensor in tensors_in(operator.written(args, kwargs)) if isinstance(tensor, SimTensor)]
    known = {id(tensor) for tensor in inputs}
    writes = [*changed, *(tensor for tensor in made if id(tensor) not in known)]
    written = {id(tensor) for tensor in changed}
    only_shapes = operator.name.startswith("new_") or operator.name.endswith("_like")  # of what they are given
    reads = [] if only_shapes else [tensor for tensor in inputs if id(tensor) not in written]
    happens_before.launched(work, reads, writes)


def launch_kernel(name: str, kernel: Kernel, inputs: Iterable[SimTensor], gpu: SimulatedGPU) -> Work:
    """Put a kernel into the GPU's current stream, behind what has written its inputs."""
    cluster = current()
    slowed = cluster.sharing and cluster.several  # by collectives beside it
    work = Work(
        name=name,
        phase=phase_now(),
        place=gpu.name,
        seconds=kernel.seconds,
        gpus=gpu.alone,
        queues=gpu.queue(cluster.current_stream(gpu.index)),
        flops=kernel.flops,
        nbytes=kernel.nbytes,
        dtype=kernel.dtype,
        kernel=kernel if slowed else None,
        shared=gpu.shared if slowed else (),
    )
    return cluster.clock.put(work, [tensor.allocation.last_write for tensor in inputs])


def launch_foreach(operator: Operator, args: tuple, inputs: list[SimTensor], cluster: Cluster) -> None:
    """A ``_foreach`` operator over several GPUs is one launch on each."""
    for number in sorted({tensor.gpu for tensor in inputs}):
        read = [tensor for tensor in inputs if tensor.gpu == number]
        gpu = cluster.gpus[number]
        written = [tensor for tensor in tensors_in(args[0]) if tensor.gpu == number]
        nbytes = sum(tensor.nbytes for tensor in (*read, *written))
        kernel = costs.kernel(gpu.model, costs.NOTHING, "", costs.Moved(nbytes))
        work = launch_kernel(operator.name, kernel, read, gpu)
        for tensor in written:
            tensor.allocation.last_write = work
        if happens_before.watching is not None:
            _note(work, operator, args, {}, read, written)
