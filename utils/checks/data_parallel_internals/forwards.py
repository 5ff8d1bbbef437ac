"""Training steps with a data-parallel forward written by hand, as plain data: numbers, bytes by link, who computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from utils.checks.data_parallel_internals.gpus import (
    CLASSES,
    LAUNCH_S,
    WIDTH,
    cluster_of,
    computed_on,
    home_of,
    made_on,
    model_stays,
    moved,
    numbers_of,
    place_of,
    plain_model,
    refuse_the_library,
)

if TYPE_CHECKING:
    import torch
    from torch import nn


def two_steps(data_parallel_forward: Any, gpus: int, rows: int) -> dict[str, Any]:
    """Two training steps with the learner's forward, and the same two on the host.

    Returns:
        ``steps``: for each step what came back and what it should be; ``moved`` in the first step, by "forward" and
        "backward"; ``forward on``, ``backward on``: the GPUs that computed; ``bytes``: of the parameters.
    """
    import torch

    from utils import simgpu

    refuse_the_library()
    devices = cluster_of(gpus)
    on_host, model = plain_model(), made_on(devices[0], plain_model)
    parameters = list(model.parameters())
    batch = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))
    weights = torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(rows + 1))
    on_gpu, weights_on_gpu = batch.to(devices[0]), weights.to(devices[0])
    first = -(-rows // gpus)
    found: dict[str, Any] = {"steps": [], "bytes": sum(p.nbytes for p in on_host.parameters())}
    for _ in range(2):
        step: dict[str, Any] = {}
        found["steps"].append(step)
        with simgpu.profile() as ahead, model_stays(model):
            output = data_parallel_forward(model, on_gpu, list(devices))
        right = on_host(batch)
        step["kind"] = "tensor" if isinstance(output, torch.Tensor) else type(output).__name__
        step["home"] = home_of(model)
        if step["kind"] != "tensor":
            break
        step |= {"place": place_of(output), "output": numbers_of(output), "right": right.detach()}
        step["graph"] = output.requires_grad
        if output.shape != right.shape or step["place"] != "GPU 0" or not output.requires_grad:
            break
        if step["home"] != ["GPU 0"]:  # backward would meet parameters on another GPU than the forward did
            break
        loss = (output * weights_on_gpu).sum()
        with simgpu.profile() as back:
            loss.backward()
        found.setdefault("moved", {"forward": moved(ahead), "backward": moved(back)})
        found.setdefault("forward on", computed_on(ahead, "forward"))
        found.setdefault("backward on", computed_on(back, "backward"))
        step["gradients"] = [None if p.grad is None else numbers_of(p.grad) for p in parameters]
        step["right gradients"] = _gradients(on_host, batch, weights)
        step["gradients of GPU 0 alone"] = _gradients(on_host, batch[:first], weights[:first])
        _step(parameters, step["gradients"])
        _step(on_host.parameters(), step["right gradients"])
    return found


def _gradients(model: nn.Module, batch: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    import torch

    return list(torch.autograd.grad((model(batch) * weights).sum(), list(model.parameters())))


def _step(parameters: Iterable[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    """One step of gradient descent, with the learner's own gradients."""
    import torch

    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None
            if gradient is not None:
                parameter.sub_(gradient.to(parameter.device), alpha=0.1)


def together(data_parallel_forward: Any, gpus: int) -> dict[int, tuple[float, float]]:
    """A forward on GPUs that compute slowly: from when to when each GPU computes, in simulated seconds."""
    import torch
    from torch import nn

    from utils import simgpu

    refuse_the_library()
    fast = simgpu.gpu("H100")
    slow = dataclasses.replace(fast, name="slow", flops={kind: rate / 1e5 for kind, rate in fast.flops.items()})
    devices = cluster_of(gpus, gpu=slow, launch_s=LAUNCH_S)
    with devices[0]:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        batch = torch.randn(gpus * 64, 64)
    with simgpu.profile() as profile:
        data_parallel_forward(model, batch, list(devices))
    spans: dict[int, tuple[float, float]] = {}
    for event in profile.events:
        if event.phase == "forward" and event.flops:
            first, last = spans.get(event.gpus[0], (event.start, event.end))
            spans[event.gpus[0]] = (min(first, event.start), max(last, event.end))
    return spans


def batches_seen(data_parallel_forward: Any, gpus: int) -> int:
    """One forward of a model with batch normalisation in training mode: how many batches has the model counted?"""
    import torch
    from torch import nn

    refuse_the_library()
    devices = cluster_of(gpus)
    model = made_on(devices[0], lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    batch = torch.randn(4 * gpus, 4, device=devices[0])
    data_parallel_forward(model, batch, list(devices))
    return int(model[1].num_batches_tracked)
