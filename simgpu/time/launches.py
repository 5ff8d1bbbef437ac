"""An operator's way onto its GPU's timeline: its costs, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from simgpu.cluster import SimulatedGPU, current
from simgpu.tensors.schemas import Call, tensors_in
from simgpu.tensors.shapes import Answer
from simgpu.tensors.tensor import SimTensor
from simgpu.time import costs, happens_before
from simgpu.time.counting import cost_of
from simgpu.time.phases import phase_now
from simgpu.time.work import Kernel, Work

aten = torch.ops.aten


def launch_operator(call: Call, out: Any, result: Any, gpu: SimulatedGPU, answer: Answer | None = None) -> None:
    """Put an operator on its GPU's timeline. ``result`` is what came out, on the GPU (``out``: as plain tensors).

    Args:
        answer: where the costs of such a call are kept, if they are.
    """
    where = (gpu.model, *costs.settings())
    known = None if answer is None else answer.costs
    if known is not None and known[0][0] is where[0] and known[0][1:] == where[1:]:
        kernel = known[1]
    else:
        kernel = costs.kernel(gpu.model, cost_of(call, out))
        if answer is not None:
            answer.costs = where, kernel
    work = launch_kernel(call.operator.name, kernel, call.inputs, gpu)
    for tensor in tensors_in(result if result is not None else call.args[0]):
        tensor.allocation.last_write = work
    if happens_before.watching is not None:
        _note(work, call, tensors_in(result))
    if call.operator.needs_numbers(call.args):  # how large its output is must be known on the host
        current().synchronize(gpu.index)


def _note(work: Work, call: Call, made: list) -> None:
    """Somebody looks for races: what it reads and writes."""
    changed = [tensor for tensor in tensors_in(call.changed) if isinstance(tensor, SimTensor)]
    known = {id(tensor) for tensor in call.inputs}
    writes = [*changed, *(tensor for tensor in made if id(tensor) not in known)]
    written = {id(tensor) for tensor in changed}
    only_shapes = call.operator.name.startswith("new_") or call.operator.name.endswith("_like")  # of what they get
    reads = [] if only_shapes else [tensor for tensor in call.inputs if id(tensor) not in written]
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


def launch_foreach(call: Call) -> None:
    """A ``_foreach`` operator over several GPUs is one launch on each."""
    for number in sorted({tensor.gpu for tensor in call.inputs}):
        gpu = current().gpus[number]
        read = [tensor for tensor in call.inputs if tensor.gpu == number]
        written = [tensor for tensor in tensors_in(call.args[0]) if tensor.gpu == number]
        moved = costs.Cost(sum(tensor.nbytes for tensor in read), sum(tensor.nbytes for tensor in written))
        work = launch_kernel(call.operator.name, costs.kernel(gpu.model, moved), read, gpu)
        for tensor in written:
            tensor.allocation.last_write = work
        if happens_before.watching is not None:
            _note(work, Call(call.operator, call.args, {}, read), written)
