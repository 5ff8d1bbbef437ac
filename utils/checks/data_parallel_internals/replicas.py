"""A model replicated on GPUs: what each replica holds, what happens when it is used, and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utils.checks.compare import expect, how_far
from utils.checks.data_parallel_internals.gpus import (
    MOVED,
    cluster_of,
    home_of,
    made_on,
    moved,
    not_through_the_host,
    numbers_of,
    place_of,
    total_bytes,
)
from utils.checks.verdicts import Wrong

if TYPE_CHECKING:
    import torch
    from torch import nn


def small_model() -> nn.Module:
    """A model with everything that is easily forgotten: layers inside layers, statistics, a buffer that is not saved,
    and one weight that two layers share."""
    import torch
    from torch import nn

    class Scale(nn.Module):
        """Multiplies by learned numbers, and by a mask that ``state_dict`` leaves out."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.linspace(0.5, 1.5, width))
            self.register_buffer("mask", (torch.arange(width) % 3 > 0).float(), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.gain * self.mask

    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(6, 6), nn.Sequential(nn.BatchNorm1d(6), nn.Tanh(), Scale(6)), nn.Linear(6, 6), nn.Linear(6, 3)
    )
    model[2].weight = model[0].weight
    return model


def replicated(replicate_model: Any, gpus: int) -> dict[str, Any]:
    """Replicate the small model, then use every replica once: forward in training mode, loss, backward.

    Returns:
        ``kind``: what came back; ``names``: what it should hold, and whether it is a parameter; ``tensors``: for each
        replica and name the facts about its tensor; ``moved``: bytes by link; ``home``: where the model is afterwards;
        ``parameters``, ``buffers``: their bytes; ``use``: what happened in use, or the error that ended it.
    """
    from utils import simgpu

    devices = cluster_of(gpus)
    on_host, model = small_model(), made_on(devices[0], small_model)
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    every_name = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    addresses = {name: tensor.raw.data_ptr() for name, tensor in every_name}
    with simgpu.profile() as profile:
        replicas = replicate_model(model, list(devices))
    found: dict[str, Any] = {
        "kind": _kind_of_replicas(replicas),
        "names": {name: name in dict(model.named_parameters()) for name in own},
        "moved": moved(profile),
        "home": home_of(model),
        "parameters": sum(tensor.nbytes for tensor in on_host.parameters()),
        "buffers": sum(tensor.nbytes for tensor in on_host.buffers()),
    }
    if found["kind"] != "dicts":
        return found
    found["tensors"] = [
        {name: _facts(tensor, on_host, name, addresses) for name, tensor in replica.items()} for replica in replicas
    ]
    try:
        found["use"] = _use(model, replicas, devices, on_host)
    except Exception as error:
        found["use"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return found


def _kind_of_replicas(replicas: Any) -> str:
    import torch

    if not isinstance(replicas, list | tuple):
        return type(replicas).__name__
    for replica in replicas:
        if not isinstance(replica, dict):
            return f"list with a {type(replica).__name__}"
        for value in replica.values():
            if not isinstance(value, torch.Tensor):
                return f"list with a dict with a {type(value).__name__}"
    return "dicts"


def _facts(tensor: torch.Tensor, on_host: nn.Module, name: str, addresses: dict[str, int]) -> dict[str, Any]:
    import torch

    like = dict(on_host.named_parameters(remove_duplicate=False)) | dict(on_host.named_buffers())
    raw = getattr(tensor, "raw", None)
    return {
        "place": place_of(tensor),
        "same numbers": name not in like or torch.equal(tensor.detach().cpu(), like[name].detach()),
        "gradients": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "the model's own": raw is not None and raw.data_ptr() == addresses.get(name),
    }


def _use(model: nn.Module, replicas: list[Any], devices: list[torch.device], on_host: nn.Module) -> dict[str, Any]:
    """Run each replica on rows of its own, the last one first, and watch whose statistics change."""
    import torch
    from torch.func import functional_call

    shares = [torch.randn(5, 6, generator=torch.Generator().manual_seed(gpu)) for gpu in range(len(devices))]
    counts = {}
    for gpu in reversed(range(len(devices))):
        loss = functional_call(model, replicas[gpu], (shares[gpu].to(devices[gpu]),)).square().sum()
        loss.backward()
        counts[gpu] = int(model[1][0].num_batches_tracked)
    mean = on_host[1][0].running_mean.clone()
    for gpu in reversed(range(len(devices))):  # the same on the host, where GPU 0's share comes last
        on_host[1][0].running_mean.copy_(mean)
        on_host(shares[gpu]).square().sum().backward()
    pairs = zip(model.parameters(), on_host.parameters(), strict=True)
    return {
        "batches counted by the model": counts,
        "gradients missing": any(parameter.grad is None for parameter in model.parameters()),
        "gradients": any(
            mine.grad is not None and how_far(numbers_of(mine.grad), right.grad, relative=1e-4, absolute=1e-5)
            for mine, right in pairs
        ),
        "statistics": how_far(
            numbers_of(model[1][0].running_mean), on_host[1][0].running_mean, relative=1e-4, absolute=1e-6
        ),
    }


def judge_replicas(gpus: int, found: dict[str, Any]) -> None:
    """What was returned, name by name."""
    if found["home"] != ["GPU 0"]:
        raise Wrong(MOVED, measured=found["home"], expected=["GPU 0"])
    if found["kind"] != "dicts":
        raise Wrong(
            "replicate_model returns a list with one dict for each GPU, from names to tensors", measured=found["kind"]
        )
    replicas, is_parameter = found["tensors"], found["names"]
    if len(replicas) != gpus:
        raise Wrong("replicate_model returns one dict for each GPU", measured=len(replicas), expected=gpus)
    missing = [name for name in is_parameter for replica in replicas if name not in replica]
    if parameters := [name for name in missing if is_parameter[name]]:
        raise Wrong(f"the parameter {parameters[0]} is missing: layers may hold layers. named_parameters() finds all.")
    for gpu, replica in enumerate(replicas):
        for name in is_parameter:
            if is_parameter[name]:
                _judge_gradients(gpu, name, replica[name])
    if missing:
        saved = "num_batches" in missing[0] or "running" in missing[0]
        why = "a replica has buffers too" if saved else "state_dict leaves out buffers that need not be saved"
        raise Wrong(f"the buffer {missing[0]} is missing: {why}. named_buffers() finds all.")


def _judge_gradients(gpu: int, name: str, facts: dict[str, Any]) -> None:
    if not facts["gradients"]:
        raise Wrong(
            f"the tensor {name} of GPU {gpu} knows nothing of the model's parameter: no gradient can come back. "
            "Copy the parameter itself, with autograd watching."
        )
    if gpu and facts["leaf"]:
        raise Wrong(
            f"the tensor {name} of GPU {gpu} is a new parameter: gradients end there and never reach the model. "
            "Keep what .to(device) returns."
        )


def judge_copies(gpus: int, found: dict[str, Any]) -> None:
    """Where the tensors are, what they share, and what it cost to get them there."""
    for gpu, replica in enumerate(found["tensors"]):
        for name, facts in replica.items():
            kind = "parameter" if found["names"].get(name, True) else "buffer"
            if facts["place"] != f"GPU {gpu}":
                shared = ": the replicas share it with the model" if facts["the model's own"] else ""
                raise Wrong(
                    f"the {kind} {name} of replica {gpu} is in the wrong place{shared}",
                    measured=facts["place"],
                    expected=f"GPU {gpu}",
                )
            if not facts["same numbers"]:
                raise Wrong(f"the {kind} {name} of replica {gpu} has other numbers than the model's.")
            if gpu == 0 and not facts["the model's own"]:
                why = "a copy's statistics are lost" if kind == "buffer" else "a second copy only takes memory"
                raise Wrong(f"GPU 0 has the model already, so its {kind} {name} should be the model's own: {why}.")
    moved, each = found["moved"], found["parameters"] + found["buffers"]
    not_through_the_host(moved, "tensors go")
    expect(
        f"With {gpus} GPUs other bytes move; a GPU gets each tensor once, one that two layers share too",
        total_bytes(moved.items()),
        (gpus - 1) * each,
        unit="bytes",
    )


def judge_use(gpus: int, use: Any) -> None:
    if isinstance(use, str):
        raise Wrong(f"functional_call(model, replica, …) with your dicts ended with {use}.")
    if use["gradients missing"] or use["gradients"]:
        raise Wrong(f"with {gpus} replicas the model's gradients are not the sum of those of the replicas.")
    expect(
        "The batches that the model's statistics have seen after each replica's turn, GPU 0 last",
        use["batches counted by the model"],
        {gpu: int(gpu == 0) for gpu in reversed(range(gpus))},
    )
    if use["statistics"]:
        raise Wrong(
            f"after all replicas ran, the model's running mean is {use['statistics']}: only GPU 0 may change it."
        )
