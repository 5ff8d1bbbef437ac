"""Check of ``average``, in workers of mpiexec: one collective of MPI for all gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, exercise, refuse
from checks.labs.other_frameworks import workers

BACK = "gradient.copy_(part.view_as(gradient))"
OFFICIAL = Reference("other_frameworks", "average", {
    "the gradients are added up, not averaged: divide by the number of workers":
        {"    flat /= world.Get_size()\n": ""},
    "the gradients are as before: put the averages back into `parameter.grad`": {BACK: "pass"},
    "the sum is divided by 3, whatever the number of workers in `world` is": {"world.Get_size()": "3"},
    "COMM_WORLD is all workers there are: call the collective of `world`":
        {"world.Allreduce(": "MPI.COMM_WORLD.Allreduce("},
    "the right numbers are in wrong places: a gradient's elements may have another order in memory":
        {BACK: "gradient.as_strided(part.shape, (1,)).copy_(part)"},
})  # fmt: skip
ODD = "transposed parts of larger tensors"
CASES = [
    {"workers": 3, "shapes": [[3], [2, 2]], "gradients": "as usual"},
    {"workers": 2, "shapes": [[3], [2, 2]], "gradients": "as usual"},
    {"workers": 2, "shapes": [[], [2, 3], [4]], "gradients": "the first one None"},
    {"workers": 3, "shapes": [[4, 5], [2, 3, 4]], "gradients": ODD},
    {"workers": 2, "shapes": [[], [5, 2], [70, 80]], "gradients": ODD},
]
MOVES = ("reduce", "gather", "scatter", "bcast", "send", "recv", "alltoall", "scan", "barrier")


def model(case: dict[str, Any], seed: int) -> list[torch.nn.Parameter]:
    """Parameters with gradients."""
    generator, made = torch.Generator().manual_seed(seed), []
    for shape in case["shapes"]:
        made.append(torch.nn.Parameter(torch.full(shape, 0.5)))
        if case["gradients"] == ODD:
            order = [*range(len(shape))][::-1]
            made[-1].grad = torch.randn([*shape[::-1], 2], generator=generator)[..., 0].permute(order)
        else:
            made[-1].grad = torch.randn(shape, generator=generator)
    if "None" in case["gradients"]:
        made[0].grad = None
    return made


@exercise(OFFICIAL, CASES, title="Average with MPI", difficulty=1, minutes=15, **workers.by("mpi4py"))
def mpi(case: dict[str, Any], average: Callable[..., None]) -> dict[str, Any]:
    """Judge ``average(world, parameters)`` in three workers. Where two are a world, the third is one of its own."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.Get_rank()
    first, second = model(case, rank), model(case, rank + 10)
    world = MPI.COMM_WORLD.Split(int(rank < case["workers"]))
    calls: list[tuple[str, int]] = []  # name, bytes
    requests: list[Any] = []

    class Watched(MPI.Intracomm):
        """Writes down what moves data. So do communicators that are made of it."""

        def __getattribute__(self, name: str) -> Any:
            method = super().__getattribute__(name)

            def call(*arguments: Any, **named: Any) -> Any:
                given = [*arguments, *named.values()]  # memory, also as mpi4py's [memory, type]
                parts = [part for one in given for part in (one if isinstance(one, list | tuple) else [one])]
                calls.append((name, max((getattr(part, "nbytes", 0) for part in parts), default=0)))
                requests.append(method(*arguments, **named))
                return requests[-1]

            return call if any(part in name.lower() for part in MOVES) else method

    average(Watched(world), first)
    names, most = [name for name, _ in calls], sum(4 * one.numel() for one in first if one.grad is not None)
    pickled = next((name for name in names if name[0].islower()), "")
    refuse(pickled, f"{pickled} pickles what it sends: {pickled.title()} sends the memory as it is")
    fault = "more than one collective for one model: pack all gradients together, and let Allreduce share the work"
    refuse(len(names) > 1, fault, measured=", ".join(names))
    fault, given = "the collective is given more bytes than the gradients have", calls[0][1] if calls else 0
    refuse("gather" not in str(names) and given > most, fault, measured=given, expected=most)
    left = [one for one in requests if isinstance(one, MPI.Request) and not isinstance(one, MPI.Prequest) and one]
    refuse(left, "a request is never waited for: call Wait() before its buffer is used")
    gradients = [one.grad if one.grad is None else one.grad.clone() for one in first]
    average(world, second)
    return {
        "the gradients": gradients,
        "the gradients, after average was called for another model": [one.grad for one in first],
        "the other model's gradients": [one.grad for one in second],
    }
