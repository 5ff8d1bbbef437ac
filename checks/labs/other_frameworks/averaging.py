"""Check of ``average``, in workers of mpiexec: one collective of MPI for all gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, refuse

GRADIENTS = "[parameter.grad for parameter in parameters if parameter.grad is not None]\n"
BACK = "gradient.copy_(part.view_as(gradient))"
OFFICIAL = Reference("other_frameworks", "average", {
    "the gradients are added up, not averaged: divide by the number of workers":
        {"    flat /= world.Get_size()\n": ""},
    "the gradients are as before: put the averages back into `parameter.grad`": {BACK: "pass"},
    "the sum is divided by 3, whatever the number of workers in `world` is": {"world.Get_size()": "3"},
    "COMM_WORLD is all workers there are: call the collective of `world`":
        {"world.Allreduce(": "MPI.COMM_WORLD.Allreduce("},
    "a parameter without a gradient has got one: leave it None":
        {f"    gradients = {GRADIENTS}": "    for parameter in parameters:\n        if parameter.grad is None:\n"
         f"            parameter.grad = torch.zeros_like(parameter)\n    gradients = {GRADIENTS}"},
    "the right numbers are in wrong places: a gradient's elements may have another order in memory":
        {BACK: "gradient.as_strided(part.shape, (1,)).copy_(part)"},
})  # fmt: skip
CASES = [
    {"workers": 3, "shapes": [[3], [2, 2]], "kind": "as usual"},
    {"workers": 2, "shapes": [[3], [2, 2]], "kind": "as usual"},
    {"workers": 2, "shapes": [[], [2, 3], [4]], "kind": "the first one None"},
    {"workers": 3, "shapes": [[4, 5], [2, 3, 4]], "kind": "transposed"},
    {"workers": 2, "shapes": [[], [5, 2], [70, 80]], "kind": "part of a larger tensor"},
]
MOVES = ("reduce", "gather", "scatter", "bcast", "send", "recv", "alltoall", "scan", "barrier")


def model(case: dict[str, Any], seed: int) -> list[torch.nn.Parameter]:
    """Parameters with gradients."""
    generator, made = torch.Generator().manual_seed(seed), []
    for number, shape in enumerate(case["shapes"]):
        gradient = torch.randn(shape, generator=generator)
        if case["kind"] == "transposed":
            gradient = gradient.transpose(0, 1).contiguous().transpose(0, 1)
        elif case["kind"] == "part of a larger tensor":
            gradient = torch.stack([gradient, gradient], dim=-1)[..., 0]
        made.append(torch.nn.Parameter(torch.full(shape, 0.5)))
        made[-1].grad = None if number == 0 and "None" in case["kind"] else gradient
    return made


def play(case: dict[str, Any], average: Callable[..., None]) -> dict[str, Any]:
    """In a worker of three; where two of them are a world, the third one is a world of its own."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.Get_rank()
    first, second = model(case, rank), model(case, rank + 10)
    world = MPI.COMM_WORLD.Split(int(rank < case["workers"]))
    calls: list[tuple[str, int, Any]] = []  # name, bytes, what it returns

    class Watched(MPI.Intracomm):
        """Writes down what moves data. So do communicators that are made of it."""

        def __getattribute__(self, name: str) -> Any:
            method = super().__getattribute__(name)
            if not any(part in name.lower() for part in MOVES):
                return method

            def call(*arguments: Any, **named: Any) -> Any:
                calls.append((name, max(map(_bytes, [*arguments, *named.values()]), default=0), None))
                calls[-1] = (*calls[-1][:2], method(*arguments, **named))
                return calls[-1][2]

            return call

    average(Watched(world), first)
    names, most = [name for name, _, _ in calls], sum(4 * one.numel() for one in first if one.grad is not None)
    pickled = next((name for name in names if name[0].islower()), "")
    refuse(pickled, f"{pickled} pickles what it sends: {pickled.title()} sends the memory as it is")
    words = "more than one collective for one model: pack all gradients together, and let Allreduce share the work"
    refuse(len(names) > 1, words, measured=", ".join(names))
    words, given = "the collective is given more bytes than the gradients have", calls[0][1] if calls else 0
    refuse("gather" not in str(names) and given > most, words, measured=given, expected=most)
    left = [one for _, _, one in calls if isinstance(one, MPI.Request) and not isinstance(one, MPI.Prequest) and one]
    refuse(left, "a request is never waited for: call Wait() before its buffer is used")
    seen = {
        "the parameters themselves": [one.detach().clone() for one in first],
        "the gradients": [one.grad if one.grad is None else one.grad.clone() for one in first],
    }
    average(world, second)
    return seen | {
        "the gradients, after average was called for another model": [one.grad for one in first],
        "the other model's gradients": [one.grad for one in second],
    }


def _bytes(buffer: Any) -> int:
    """Of memory, also as mpi4py's [memory, type]."""
    if isinstance(buffer, list | tuple):
        return max(map(_bytes, buffer), default=0)
    try:
        return int(buffer.nbytes) if hasattr(buffer, "nbytes") else memoryview(buffer).nbytes
    except TypeError:
        return 0
