"""This lab's ``average(world, parameters)``, inside a worker of mpiexec: what it must do, and what it does."""

from __future__ import annotations

from typing import Any

from utils.checks.other_frameworks.launching import Facts
from utils.checks.verdicts import Wrong

#: Shapes of the parameters of each model; a shape in brackets: a parameter without a gradient.
MODELS: dict[str, list[Any]] = {
    "a small network": [(64, 64), (64,), (64, 10), (10,)],
    "one parameter": [(7,)],
    "a layer that was not used": [(5, 3), [(4,)], (2, 2, 3)],
    "a gradient that is a transpose": [(6, 4)],
}
SIZES = (3, 2, 1)
_PICKLED = ("allreduce", "reduce", "bcast", "gather", "allgather", "scatter", "send", "recv", "alltoall", "sendrecv")
_THROUGH_ONE = {"reduce", "gather", "gatherv", "send", "recv", "scatter", "bcast"}


def judge_me(call: Any, world: Any) -> Facts:
    """Call the answer for each model, in communicators of 3, 2 and 1 workers; raise Wrong for the likeliest mistake."""
    rank, done = world.Get_rank(), 0
    for size in SIZES:
        part = world.Split(int(rank < size), rank)  # the first so many workers
        if rank < size:
            for name, shapes in MODELS.items():
                _judge_case(call, part, name, shapes)
                done += 1
    return {"calls": done}


def _judge_case(call: Any, part: Any, name: str, shapes: list[Any]) -> None:
    rank, size = part.Get_rank(), part.Get_size()
    model = _model(rank, shapes, "transpose" in name)
    others = [_model(other, shapes, False) for other in range(size)]
    before = [parameter.detach().clone() for parameter in model]
    own = [None if parameter.grad is None else parameter.grad.clone() for parameter in model]
    calls = _watched(part)
    call(calls, model)
    where = f"({name}, {size} worker{'s' * (size > 1)})"
    if any(not _same(parameter.detach(), was) for parameter, was in zip(model, before, strict=True)):
        raise Wrong(f"the parameters themselves have changed: average their gradients only {where}")
    sums = [
        None if parameter.grad is None else sum(other[number].grad for other in others)
        for number, parameter in enumerate(others[0])
    ]
    _judge_talk(calls.seen, sums, size, where)
    for parameter, total, mine in zip(model, sums, own, strict=True):
        if total is None:
            if parameter.grad is not None:
                raise Wrong(f"a parameter without a gradient has got one: leave it None {where}")
            continue
        got = parameter.grad
        if got is None or got.shape != total.shape:
            raise Wrong(
                f"the gradient must keep its shape {where}",
                measured="None" if got is None else list(got.shape),
                expected=list(total.shape),
            )
        if _same(got, total / size):
            continue
        if _same(got, total):
            raise Wrong(f"the gradients are added up, not averaged: divide by the number of workers {where}")
        if _same(got, mine):
            raise Wrong(f"the gradients are as before: put the averages back into parameter.grad {where}")
        if sorted(got.flatten().tolist()) and _same(got.flatten().sort()[0], (total / size).flatten().sort()[0]):
            raise Wrong(f"the right numbers are in the wrong places: look at the order of the elements {where}")
        raise Wrong(
            f"the gradients are not the mean over the workers {where}",
            measured=got.flatten()[0].item(),
            expected=(total / size).flatten()[0].item(),
        )


def _judge_talk(seen: list[tuple[str, int]], sums: list[Any], size: int, where: str) -> None:
    """One collective, with buffers, of as many bytes as all gradients have."""
    wanted = sum(4 * total.numel() for total in sums if total is not None)
    names = [name for name, _ in seen]
    if pickled := [name for name in names if name in _PICKLED]:
        raise Wrong(
            f"{pickled[0]} pickles what it sends, and makes new objects of it at the other end: take "
            f"{pickled[0].capitalize()}, which sends the memory as it is {where}"
        )
    if not names and size > 1:
        raise Wrong(f"nothing is said on the communicator that average was given {where}")
    if len(names) > 1 and set(map(str.lower, names)) <= _THROUGH_ONE:
        raise Wrong(
            f"everything goes through one worker, which receives it from all others: let MPI share the work with "
            f"Allreduce {where}",
            measured=", ".join(sorted(set(names))),
        )
    if len(names) > 1:
        raise Wrong(
            f"too many collectives for one step {where}: pack all gradients together", measured=len(names), expected=1
        )
    if names and seen[0][1] != wanted:
        raise Wrong(
            f"the collective carries other bytes than those of the gradients {where}",
            measured=seen[0][1],
            expected=wanted,
        )


def _model(rank: int, shapes: list[Any], transposed: bool) -> list[Any]:
    """Parameters with gradients that are different in each worker."""
    import torch

    generator, model = torch.Generator().manual_seed(100 + rank), []
    for shape in shapes:
        unused = isinstance(shape, list)
        parameter = torch.nn.Parameter(torch.ones(shape[0] if unused else shape))
        if not unused:
            gradient = torch.randn(parameter.shape, generator=generator)
            if transposed:
                gradient = gradient.T.contiguous().T  # the same numbers, the columns one after the other in memory
            parameter.grad = gradient
        model.append(parameter)
    return model


def _same(one: Any, other: Any) -> bool:
    import torch

    return torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-5)


def _watched(part: Any) -> Any:
    """The same communicator, writing down which of its functions are called, with how many bytes."""
    from mpi4py import MPI

    silent = {"get_rank", "get_size", "rank", "size", "barrier"}

    class Watched(MPI.Intracomm):
        """What the learner's function talks on."""

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name.startswith("_") or name.lower() in silent or not callable(value):
                return value

            def noted(*arguments: Any, **named: Any) -> Any:
                given = [*arguments, *named.values()]
                self.seen.append((name, max((_bytes(one) for one in given), default=0)))
                return value(*arguments, **named)

            return noted

    watched = Watched(part)
    watched.seen = []
    return watched


def _bytes(buffer: Any) -> int:
    if isinstance(buffer, list | tuple):  # mpi4py also takes [buffer, type] and [buffer, count, type]
        return max((_bytes(part) for part in buffer), default=0)
    return int(getattr(buffer, "nbytes", 0))
