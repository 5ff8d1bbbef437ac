"""Exercise 1: ``average(world, parameters)``, with one collective of MPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, refuse

OFFICIAL = Reference("other_frameworks", "average", {
    "the gradients are added up, not averaged: divide by the number of workers": {
        "    flat /= world.Get_size()\n": ""},
    "the gradients are as before: put the averages back into `parameter.grad`": {
        "gradient.copy_(part.view_as(gradient))": "pass"},
    "the sum is divided by 3, whatever the number of workers in `world` is": {"world.Get_size()": "3"},
    "COMM_WORLD is all workers there are: call the collective of `world`": {
        "world.Allreduce(": "MPI.COMM_WORLD.Allreduce("},
    "a parameter without a gradient has got one: leave it None": {
        "    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]\n":
        "    for parameter in parameters:\n        if parameter.grad is None:\n"
        "            parameter.grad = torch.zeros_like(parameter)\n"
        "    gradients = [parameter.grad for parameter in parameters]\n"},
    "the right numbers are in wrong places: a gradient's elements may have another order in memory": {
        "gradient.copy_(part.view_as(gradient))": "gradient.as_strided(part.shape, (1,)).copy_(part)"},
})  # fmt: skip
CASES = [
    {"workers": 3, "shapes": [[3], [2, 2]], "kind": "as usual"},
    {"workers": 2, "shapes": [[3], [2, 2]], "kind": "as usual"},
    {"workers": 3, "shapes": [[], [2, 3], [4]], "kind": "the first one None"},
    {"workers": 3, "shapes": [[4, 5], [2, 3, 4]], "kind": "transposed"},
    {"workers": 2, "shapes": [[], [5, 2], [70, 80]], "kind": "part of a larger tensor"},
]  # fmt: skip


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
    calls, requests = [], []  # type: ignore[var-annotated]

    class Watched(MPI.Intracomm):
        """Writes down what moves data. So do communicators that are made of it."""

        def __getattribute__(self, name: str) -> Any:
            method = super().__getattribute__(name)
            moves = ("reduce", "gather", "scatter", "bcast", "send", "recv", "alltoall", "scan", "barrier")
            if not any(part in name.lower() for part in moves):
                return method

            def call(*arguments: Any, **named: Any) -> Any:
                calls.append((name, next((n for n in map(nbytes, [*arguments, *named.values()]) if n), 0)))
                requests.append(method(*arguments, **named))
                return requests[-1]

            return call

    average(Watched(world), first)
    names, most = [name for name, _ in calls], sum(4 * one.numel() for one in first if one.grad is not None)
    pickled = next((name for name in names if name[0].islower()), "")
    refuse(pickled, f"{pickled} pickles what it sends: {pickled.title()} sends the memory as it is")
    refuse(any("arrier" in name for name in names), "a barrier is one collective more, and a reduction waits anyway")
    refuse(
        len(names) > 1 and {name.lower() for name in names} <= {"reduce", "gather", "gatherv", "bcast", "send", "recv"},
        "everything goes through one worker: let Allreduce share the work", measured=", ".join(names),
    )  # fmt: skip
    refuse(len(names) > 1, "several collectives for one model: pack all gradients together", measured=", ".join(names))
    refuse(calls and calls[0][1] > most, "the collective is given more bytes than the gradients have",
           measured=calls and calls[0][1], expected=most)  # fmt: skip
    left = [one for one in requests if isinstance(one, MPI.Request) and not isinstance(one, MPI.Prequest) and one]
    refuse(left, "a request is never waited for: call Wait() before its buffer is used")
    seen = {"the parameters themselves": [(one.detach().clone(), one.requires_grad) for one in first]}
    seen["the gradients"] = [one.grad if one.grad is None else one.grad.clone() for one in first]
    average(world, second)
    return seen | {
        "the gradients, after average was called for another model": [one.grad for one in first],
        "the other model's gradients": [one.grad for one in second],
    }


def nbytes(buffer: Any) -> int:
    """Of memory, also as mpi4py's [memory, type] and [memory, count, type]."""
    if isinstance(buffer, list | tuple):
        return max(map(nbytes, buffer), default=0)
    if hasattr(buffer, "nbytes"):
        return int(buffer.nbytes)
    try:
        return memoryview(buffer).nbytes
    except TypeError:
        return 0
