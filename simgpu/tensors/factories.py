"""New tensors on a simulated GPU: ``torch.empty(3, device="simgpu:1")``, ``torch.arange``, and so on.

These operators have no simulated tensor among their inputs, so torch looks for a kernel of the backend. They are
registered here; what they return is a ``SimTensor``.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu.cluster import current
from simgpu.memory import allocator as memory
from simgpu.tensors import known
from simgpu.tensors.operators import compute
from simgpu.tensors.placement import gpu_of_new_tensor
from simgpu.tensors.schemas import Call, operator_of
from simgpu.tensors.tensor import new
from simgpu.time.launches import launch_operator

aten = torch.ops.aten

OPERATORS = (
    aten.empty.memory_format, aten.empty_strided.default,
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.range.step, aten.range.default,
    aten.linspace.default, aten.logspace.default, aten.eye.default, aten.eye.m,
    aten.randperm.default, aten.randperm.generator, aten.tril_indices.default, aten.triu_indices.default,
    aten.full.default, aten.zeros.default, aten.ones.default, aten.scalar_tensor.default,
    aten._efficientzerotensor.default, aten.rand.default, aten.randn.default, aten.randint.default, aten.randint.low,
)  # fmt: skip


def _make(func: Any) -> Any:
    operator = operator_of(func)

    def kernel(*args: Any, device: torch.device, **kwargs: Any) -> torch.Tensor:
        cluster = current()
        gpu, guess = gpu_of_new_tensor(device)
        kwargs.pop("pin_memory", None)
        kwargs.pop("layout", None)
        where = "cpu" if cluster.numbers else "meta"
        raw, _ = compute(operator, func, args, {**kwargs, "device": where}, gpu, cluster)
        tensor = new(raw, gpu, memory.OTHER)
        tensor.allocation.provisional = guess
        tensor.from_host = True
        if cluster.between_ranks and not operator.random:
            known.born(tensor, lambda: func(*args, **{**kwargs, "device": "cpu"}))
        if not operator.free:
            launch_operator(Call(operator, args, {}, []), raw, tensor, gpu)
        return tensor

    return kernel


def kernels() -> list[tuple[Any, Any, str]]:
    """Operators, what runs for them, and the dispatcher's key."""
    return [(func, _make(func), "PrivateUse1") for func in OPERATORS]
