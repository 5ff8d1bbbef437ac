"""The loss computed in the replicas: its value, its gradients, what goes to GPU 0, and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utils.checks.compare import how_far
from utils.checks.data_parallel_internals.gpus import (
    CLASSES,
    CLOSE,
    WIDTH,
    cluster_of,
    computed_on,
    made_on,
    moved,
    not_through_the_host,
    numbers_of,
    place_of,
    plain_model,
    refuse_the_library,
    rows_on,
    ways_to_share,
)
from utils.checks.verdicts import Wrong

if TYPE_CHECKING:
    pass


def loss_and_gradients(data_parallel_loss: Any, gpus: int, rows: int) -> dict[str, Any]:
    """The loss of one batch and its gradients, and the same on the host.

    Returns:
        ``kind``, ``place``, ``shape``, ``graph`` of what came back; ``loss`` and ``right``; ``rows alone``: the loss of
        each row; ``gradients`` and ``right gradients``; ``already``: whether the model had gradients before backward;
        ``moved`` and ``forward on``: of the forward.
    """
    import torch
    from torch.nn import functional

    from utils import simgpu

    refuse_the_library()
    devices = cluster_of(gpus)
    on_host, model = plain_model(), made_on(devices[0], plain_model)
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
    found |= {"place": place_of(value), "shape": list(value.shape), "graph": value.requires_grad}
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

    refuse_the_library()
    devices = cluster_of(gpus, numbers=False)
    with devices[0]:
        model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, MANY_CLASSES))
        batch, targets = torch.empty(MANY_ROWS, 256), torch.zeros(MANY_ROWS, dtype=torch.int64)
    with simgpu.profile() as profile:
        data_parallel_loss(model, batch, targets, list(devices)).backward()
    return profile.peak_memory(0)


MOST_GATHERED = 16  # bytes from each GPU: a sum and a count, or a loss, with room to spare
MOST_ON_GPU_0 = 1_500_000_000


def judge_loss(gpus: int, rows: int, found: dict[str, Any]) -> None:
    case, alone = rows_on(rows, gpus), found["rows alone"]
    if found["already"]:
        raise Wrong("the model has gradients before anyone called backward: leave backward to the caller.")
    if found["kind"] != "tensor":
        raise Wrong(
            f"data_parallel_loss returns a {found['kind']}: a number without a graph, so no gradient can go back. "
            "Keep tensors."
        )
    if found["shape"]:
        raise Wrong("return one number, not one for each GPU or row", measured=found["shape"], expected=[])
    if found["place"] != "GPU 0":
        raise Wrong("the loss is in the wrong place", measured=found["place"], expected="GPU 0")
    value, right = found["loss"], found["right"]
    if how_far(value, right, **CLOSE) is None:
        if not found["graph"]:
            raise Wrong("the loss knows nothing of the replicas, so no gradient can go back: no detach, no item.")
        return
    for sizes in ways_to_share(rows, gpus):
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        means = [sum(alone[start : start + size]) / size for start, size in zip(starts, sizes, strict=True)]
        mistakes = {
            "every row counts the same, so a GPU with fewer rows counts less: "
            "weight each loss with its number of rows": sum(means) / len(means),
            "this is the sum of the GPUs' means: divide": sum(means),
            "this is the sum over all rows: divide by their number": sum(alone),
            "this is the loss of GPU 0's rows alone": means[0],
            "this is the mean divided by the number of GPUs once more": right / len(means),
        }
        for sentence, wrong in mistakes.items():
            if how_far(value, wrong, **CLOSE) is None:
                raise Wrong(f"{sentence}. See {case}", measured=value, expected=right)
    raise Wrong(
        f"the loss of {case} is not that of one GPU: does each row meet its own target?", measured=value, expected=right
    )


def judge_gathered(gpus: int, rows: int, found: dict[str, Any]) -> int:
    """The most bytes that one GPU sends to GPU 0 in the forward."""
    case, moved, wanted = rows_on(rows, gpus), found["moved"], min(gpus, rows)
    not_through_the_host(moved, "losses go")
    if len(found["forward on"]) < wanted:
        raise Wrong(f"not every GPU works in the forward of {case}", measured=len(found["forward on"]), expected=wanted)
    sent = max(moved.get(f"GPU {gpu} → GPU 0", 0) for gpu in range(1, gpus))
    if sent <= MOST_GATHERED:
        return sent
    share = min(min(sizes[1:]) for sizes in ways_to_share(rows, gpus))
    numbers = {"measured": f"{sent} bytes from a GPU", "expected": "4 bytes, one loss"}
    if sent >= 4 * CLASSES * share:
        raise Wrong(
            f"a number for each row and class goes to GPU 0: compute the loss where the logits are. See {case}",
            **numbers,
        )
    raise Wrong(f"a number for each row goes to GPU 0: one for each GPU is enough. See {case}", **numbers)


def judge_loss_gradients(gpus: int, rows: int, found: dict[str, Any]) -> None:
    case = rows_on(rows, gpus)
    if any(gradient is None for gradient in found["gradients"]):
        raise Wrong(f"no gradient comes back to the model's own parameters. See {case}.")
    if distance := how_far(found["gradients"], found["right gradients"], **CLOSE):
        raise Wrong(f"the loss of {case} is right, its gradients are not: {distance}. Is a replica cut off?")
