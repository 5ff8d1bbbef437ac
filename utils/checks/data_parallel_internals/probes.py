"""What the checks of lab 03 run in a process of its own: simulated GPUs, models for them, and a look at what moves.

Each probe makes its cluster, calls the learner's function, and returns plain data: bytes by link, bytes at the peak,
numbers. What is right and what is not is decided in ``data_parallel_internals``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from utils.checks.verdicts import NotStarted, Wrong

if TYPE_CHECKING:
    import torch
    from torch import nn

    from utils.simgpu import Profile

Moved = dict[str, int]  # bytes by link: {"GPU 0 → GPU 1": 64, "host → GPU 1": 8}

LAUNCH_S = 1e-7  # where a probe asks which GPUs work at the same time, launching must not decide it


MOVED = "the model itself has moved: .to() of a module changes it in place, .to() of a tensor gives a copy"


def _cluster(gpus: int, **how: Any) -> list[torch.device]:
    from utils import simgpu

    simgpu.cluster(gpus_per_node=gpus, **how)
    return [simgpu.device(gpu) for gpu in range(gpus)]


def _on(device: torch.device, make: Callable[[], nn.Module]) -> nn.Module:
    """A model made where it is wanted: the first ``Module.to`` of a process imports half a second of torch."""
    with device:
        return make()


def _place(tensor: torch.Tensor) -> str:
    """Where a tensor lives: "GPU 1", or "host"."""
    return f"GPU {tensor.get_device()}" if tensor.device.type == "simgpu" else "host"


def moved(profile: Profile) -> Moved:
    """Bytes by link. A collective between p GPUs counts for each of the p − 1 that receive, or send."""
    total: Moved = {}
    for event in profile.events:
        if event.phase != "communication":
            continue
        root, *others = event.gpus
        links = [event.place]
        if event.place == "collective":
            links = [f"GPU {root} → GPU {other}" for other in others]
            if event.name == "reduce":
                links = [f"GPU {other} → GPU {root}" for other in others]
        for link in links:
            total[link] = total.get(link, 0) + event.nbytes
    return total


def computed_on(profile: Profile, phase: str) -> list[int]:
    """The GPUs that ran operators with arithmetic in a phase, "forward" or "backward"."""
    return sorted({event.gpus[0] for event in profile.events if event.phase == phase and event.flops})


def _home(model: nn.Module) -> list[str]:
    """Where a model's tensors are."""
    return sorted({_place(tensor) for tensor in (*model.parameters(), *model.buffers())})


@contextlib.contextmanager
def _model_stays(model: nn.Module) -> Iterator[None]:
    """An error inside that comes from a model which has left GPU 0 says so."""
    try:
        yield
    except (Wrong, NotStarted):
        raise
    except BaseException as error:
        if _home(model) == ["GPU 0"]:
            raise
        raise Wrong(MOVED, measured=_home(model), expected=["GPU 0"]) from error


def numbers_of(tensor: torch.Tensor) -> Any:
    """A tensor's numbers on the host, as one that can leave the process."""
    return tensor.detach().cpu()


# --- 1: scatter ------------------------------------------------------------------------------------------------


def scatter(scatter_batch: Any, rows: int, gpus: Sequence[int], start: str) -> dict[str, Any]:
    """Scatter a batch of ``rows`` rows of two numbers (16 bytes) that starts on the host or on the first GPU.

    Returns:
        ``kind``: of what came back; ``parts``: for each part its place and its rows; ``moved``: bytes by link.
    """
    import torch

    from utils import simgpu

    everything = _cluster(4)
    devices = [everything[gpu] for gpu in gpus]
    batch = torch.arange(rows * 2, dtype=torch.float64).view(rows, 2)
    batch = batch if start == "host" else batch.to(devices[0])
    with simgpu.profile() as profile:
        parts = scatter_batch(batch, list(devices))
    tensors = isinstance(parts, list | tuple) and all(isinstance(part, torch.Tensor) for part in parts)
    return {
        "kind": type(parts).__name__ if not isinstance(parts, list | tuple) else "list" if tensors else "other",
        "parts": [(_place(part), part.detach().cpu().tolist()) for part in parts] if tensors else [],
        "moved": moved(profile),
    }


# --- 2: replicate ----------------------------------------------------------------------------------------------


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


def replicate(replicate_model: Any, gpus: int) -> dict[str, Any]:
    """Replicate the small model, then use every replica once: forward in training mode, loss, backward.

    Returns:
        ``kind``: what came back; ``names``: what it should hold, and whether it is a parameter; ``tensors``: for each
        replica and name the facts about its tensor; ``moved``: bytes by link; ``home``: where the model is afterwards;
        ``parameters``, ``buffers``: their bytes; ``use``: what happened in use, or the error that ended it.
    """
    from utils import simgpu

    devices = _cluster(gpus)
    on_host, model = small_model(), _on(devices[0], small_model)
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    every_name = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    addresses = {name: tensor.raw.data_ptr() for name, tensor in every_name}
    with simgpu.profile() as profile:
        replicas = replicate_model(model, list(devices))
    found: dict[str, Any] = {
        "kind": _kind_of_replicas(replicas),
        "names": {name: name in dict(model.named_parameters()) for name in own},
        "moved": moved(profile),
        "home": _home(model),
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
        "place": _place(tensor),
        "same numbers": name not in like or torch.equal(tensor.detach().cpu(), like[name].detach()),
        "gradients": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "the model's own": raw is not None and raw.data_ptr() == addresses.get(name),
    }


def _use(model: nn.Module, replicas: list[Any], devices: list[torch.device], on_host: nn.Module) -> dict[str, Any]:
    """Run each replica on rows of its own, the last one first, and watch whose statistics change."""
    import torch
    from torch.func import functional_call

    from utils.checks.compare import how_far

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


# --- 3: forward ------------------------------------------------------------------------------------------------


WIDTH, CLASSES = 8, 5
MEET_S = 0.5


def plain_model() -> nn.Module:
    """Layers without statistics, so that shares of a batch give what the whole batch gives.

    The first layer notices when two threads use one module at the same time: a thread waits in it for another one.
    """
    import torch
    from torch import nn

    here, inside, arrived = threading.Condition(), [], [0]

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if threading.current_thread() is threading.main_thread():
                return super().forward(x)
            with here:
                inside.append(id(self))
                arrived[0] += 1
                here.notify_all()
                here.wait_for(lambda: arrived[0] > 1, timeout=MEET_S)
                shared = inside.count(id(self)) > 1
            try:
                if shared:
                    raise Wrong(
                        "threads share one module: functional_call puts a replica's tensors into the module while it "
                        "runs, so another thread finds those of the wrong GPU. Use a loop, or a module for each thread."
                    )
                return super().forward(x)
            finally:
                with here:
                    inside.remove(id(self))

    torch.manual_seed(4)
    return nn.Sequential(Watched(WIDTH, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, CLASSES))


def _without_the_library() -> None:
    """In this process ``nn.DataParallel`` refuses to work: writing it is the exercise."""
    from torch import nn

    def refuse(*_: Any, **__: Any) -> Any:
        raise Wrong("nn.DataParallel does the work here: write its four steps yourself.")

    nn.DataParallel.forward = refuse
    nn.parallel.data_parallel = refuse


def forward(data_parallel_forward: Any, gpus: int, rows: int) -> dict[str, Any]:
    """Two training steps with the learner's forward, and the same two on the host.

    Returns:
        ``steps``: for each step what came back and what it should be; ``moved`` in the first step, by "forward" and
        "backward"; ``forward on``, ``backward on``: the GPUs that computed; ``bytes``: of the parameters.
    """
    import torch

    from utils import simgpu

    _without_the_library()
    devices = _cluster(gpus)
    on_host, model = plain_model(), _on(devices[0], plain_model)
    parameters = list(model.parameters())
    batch = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))
    weights = torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(rows + 1))
    on_gpu, weights_on_gpu = batch.to(devices[0]), weights.to(devices[0])
    first = -(-rows // gpus)
    found: dict[str, Any] = {"steps": [], "bytes": sum(p.nbytes for p in on_host.parameters())}
    for _ in range(2):
        step: dict[str, Any] = {}
        found["steps"].append(step)
        with simgpu.profile() as ahead, _model_stays(model):
            output = data_parallel_forward(model, on_gpu, list(devices))
        right = on_host(batch)
        step["kind"] = "tensor" if isinstance(output, torch.Tensor) else type(output).__name__
        step["home"] = _home(model)
        if step["kind"] != "tensor":
            break
        step |= {"place": _place(output), "output": numbers_of(output), "right": right.detach()}
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

    _without_the_library()
    fast = simgpu.gpu("H100")
    slow = dataclasses.replace(fast, name="slow", flops={kind: rate / 1e5 for kind, rate in fast.flops.items()})
    devices = _cluster(gpus, gpu=slow, launch_s=LAUNCH_S)
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

    _without_the_library()
    devices = _cluster(gpus)
    model = _on(devices[0], lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    batch = torch.randn(4 * gpus, 4, device=devices[0])
    data_parallel_forward(model, batch, list(devices))
    return int(model[1].num_batches_tracked)


# --- 4: the loss in the replicas -------------------------------------------------------------------------------


def loss(data_parallel_loss: Any, gpus: int, rows: int) -> dict[str, Any]:
    """The loss of one batch and its gradients, and the same on the host.

    Returns:
        ``kind``, ``place``, ``shape``, ``graph`` of what came back; ``loss`` and ``right``; ``rows alone``: the loss of
        each row; ``gradients`` and ``right gradients``; ``already``: whether the model had gradients before backward;
        ``moved`` and ``forward on``: of the forward.
    """
    import torch
    from torch.nn import functional

    from utils import simgpu

    _without_the_library()
    devices = _cluster(gpus)
    on_host, model = plain_model(), _on(devices[0], plain_model)
    generator = torch.Generator().manual_seed(rows)
    batch = 3 * torch.randn(rows, WIDTH, generator=generator)
    targets = torch.randint(CLASSES, (rows,), generator=generator)
    on_gpu = batch.to(devices[0]), targets.to(devices[0])
    with simgpu.profile() as ahead:
        value = data_parallel_loss(model, *on_gpu, list(devices))
    rows_alone = functional.cross_entropy(on_host(batch), targets, reduction="none")
    right = rows_alone.mean()
    found: dict[str, Any] = {
        "kind": "tensor" if isinstance(value, torch.Tensor) else type(value).__name__,
        "right": right.item(),
        "rows alone": rows_alone.tolist(),
        "already": any(parameter.grad is not None for parameter in model.parameters()),
        "moved": moved(ahead),
        "forward on": computed_on(ahead, "forward"),
    }
    if found["kind"] != "tensor":
        return found
    found |= {"place": _place(value), "shape": list(value.shape), "graph": value.requires_grad}
    if value.dim():
        return found
    found["loss"] = float(value.detach())
    if value.requires_grad and not found["already"]:
        value.backward()
        right.backward()
        found["gradients"] = [None if p.grad is None else numbers_of(p.grad) for p in model.parameters()]
        found["right gradients"] = [p.grad for p in on_host.parameters()]
    return found


MANY_CLASSES, MANY_ROWS = 50_000, 8192


def peak_of_gpu_0(data_parallel_loss: Any, gpus: int) -> int:
    """A step with many classes, shapes only: the most bytes that GPU 0 holds."""
    import torch
    from torch import nn

    from utils import simgpu

    _without_the_library()
    devices = _cluster(gpus, numbers=False)
    with devices[0]:
        model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, MANY_CLASSES))
        batch, targets = torch.empty(MANY_ROWS, 256), torch.zeros(MANY_ROWS, dtype=torch.int64)
    with simgpu.profile() as profile:
        data_parallel_loss(model, batch, targets, list(devices)).backward()
    return profile.peak_memory(0)
