"""This lab's ``average(world, parameters)``: what is played in the workers of mpiexec, and what the check says.

The workers write down what they have seen, and the check judges it in its own process, from gradients
that it makes anew.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from checks.contracts import Broken, compare, refuse
from checks.contracts.snapshot import Snapshot
from checks.contracts.surroundings import changed, own_folder, settled, surroundings
from checks.other_frameworks.launching import Facts
from checks.verdicts import Wrong

WORKERS = 3
MOVES = ("reduce", "gather", "scatter", "bcast", "send", "recv", "alltoall", "scan", "barrier")
"""Parts of the names of collectives and messages; with a small letter, what moves data does it as pickles."""
_THROUGH_ONE = {"reduce", "gather", "gatherv", "send", "recv", "scatter", "scatterv", "bcast"}
_OWN = (".is", ".memory", ".value", ".shape", ".dtype", ".grad")  # ends of what may change of a gradient
KINDS = ("usual", "unused", "transposed", "strided")


def drawn(rng: random.Random) -> list[dict[str, Any]]:
    """In communicators of 3, 2 and 1 workers, two models each; the first one is looked at again after the second."""
    cases = []
    for size in (3, 2, 1):
        members, shapes, kinds = rng.sample(range(WORKERS), size), [], []
        for _ in range(2):
            if size != 2 or not shapes:  # two models of the same shapes: what is kept by its size shows
                shapes = [[rng.randint(1, 9) for _ in range(rng.randint(0, 3))] for _ in range(rng.randint(2, 6))]
                kinds = [rng.choice(KINDS) for _ in shapes[2:]]
                kinds = rng.sample([*kinds, "usual", rng.choice(KINDS[1:])], len(shapes))
            cases.append({"members": members, "shapes": shapes, "kinds": kinds, "seed": rng.getrandbits(30)})
    cases.append(
        {"members": [0, 1, 2], "shapes": [[200, 64], [64]], "kinds": ["usual"] * 2, "seed": rng.getrandbits(30)}
    )
    return cases


def model_of(case: dict[str, Any], rank: int) -> list[Any]:
    """Parameters with gradients that are different in each worker."""
    import torch

    generator, model = torch.Generator().manual_seed(case["seed"] + rank), []
    for shape, kind in zip(case["shapes"], case["kinds"], strict=True):
        parameter = torch.nn.Parameter(torch.full(shape, 0.5))
        gradient = torch.randn(shape, generator=generator)
        if kind == "transposed" and len(shape) > 1:
            gradient = gradient.transpose(0, 1).contiguous().transpose(0, 1)  # the same numbers in another order
        elif kind == "strided" and shape:
            gradient = torch.stack([gradient, gradient], dim=-1)[..., 0]
        if kind != "unused":
            parameter.grad = gradient
        model.append(parameter)
    return model


def play(call: Any, world: Any, cases: Sequence[dict[str, Any]]) -> Facts:
    """In a worker: call the answer for each case it is a member of."""
    rank, found, parts, models = world.Get_rank(), [], {}, []
    for case in cases:
        members = case["members"]
        key = str(members)
        if key not in parts:
            parts[key] = world.Split(int(rank in members), members.index(rank) if rank in members else 0)
        if rank not in members:
            found.append(None)
            continue
        model = model_of(case, members.index(rank))
        noted: dict[str, Any] = {"calls": [], "requests": [], "elsewhere": []}
        was = Snapshot({"parameters": model})
        with own_folder(tempfile.gettempdir()), _watched(parts[key], noted) as watched:
            before = surroundings()
            call(watched, given := list(model))
            left = [name for name, *_ in changed(before, settled(before))]
        if not watched:  # as COMM_NULL
            raise Wrong("average frees `world`, and whoever calls it still needs that communicator")
        if [*map(id, given)] != [*map(id, model)]:
            raise Wrong("average changes the list of parameters, and whoever calls it still needs that list")
        if left:
            raise Wrong(f"average leaves {left[0]} other than before: put back what you change")
        if len(members) > 1 and not noted["calls"]:  # told here, for where others take part it may wait for ever
            words = f"worker {members.index(rank)} of {len(members)} says nothing on `world`, the communicator"
            raise Wrong(f"{words} that is given: each of its workers has to take part")
        if any(noted["requests"]):  # (one that is over is null)
            raise Wrong("a request is never waited for: call Wait() before its buffer is used, or thrown away")
        models.append((len(found), model))
        paths = [path for path, *_ in was.changes_to(Snapshot({"parameters": model}))]
        other = [path for path in paths if not (".grad" in path and path.endswith(_OWN))]
        found.append({"calls": noted["calls"], "elsewhere": noted["elsewhere"], "other": other, "now": _state(model)})
    for place, model in models:
        found[place]["later"] = _state(model)
    return {"cases": found}


def _state(model: Sequence[Any]) -> list[Any]:
    """Of each parameter its gradient as shape, type and numbers; and whether its own numbers are as they were."""
    state = []
    for parameter in model:
        gradient, same = parameter.grad, bool((parameter.detach() == 0.5).all()) and parameter.requires_grad
        told = None if gradient is None else [list(gradient.shape), str(gradient.dtype), gradient.flatten().tolist()]
        state.append([told, same])
    return state


@contextlib.contextmanager
def _watched(part: Any, noted: dict[str, Any]) -> Iterator[Any]:
    """The same communicator, writing down what it is asked to send. So are communicators that are made of it.

    In the ``with`` block it knows also what is said on COMM_WORLD, and by methods of the class.
    """
    from mpi4py import MPI

    plain, every, world = MPI.Intracomm, MPI.Comm, MPI.COMM_WORLD

    def noting(name: str, method: Any) -> Any:
        def call(this: Any, *arguments: Any, **named: Any) -> Any:
            if any(part in name.lower() for part in MOVES):
                if isinstance(this, Elsewhere):
                    noted["elsewhere"].append(name)
                else:
                    noted["calls"].append([name, _handed_in([*arguments, *named.values()])])
            result = method(this, *arguments, **named)
            if isinstance(result, MPI.Request) and not isinstance(result, MPI.Prequest):  # which can start again
                noted["requests"].append(result)
            return type(this)(result) if isinstance(result, plain) else result

        return call

    names = [name for name in dir(plain) if not name.startswith("_")]
    methods = {name: getattr(plain, name) for name in names if inspect.ismethoddescriptor(getattr(plain, name))}
    Watched = type("Watched", (plain,), {name: noting(name, method) for name, method in methods.items()})

    class Elsewhere(Watched):
        """All workers there are."""

    MPI.Intracomm = MPI.Comm = Watched
    MPI.COMM_WORLD = Elsewhere(world)
    try:
        yield Watched(part)
    finally:
        MPI.Intracomm, MPI.Comm, MPI.COMM_WORLD = plain, every, world


def _handed_in(given: list[Any]) -> int:
    """Bytes of the first buffer; with MPI.IN_PLACE, of the one behind it."""
    return next((nbytes for one in given if (nbytes := _bytes(one))), 0)


def _bytes(buffer: Any) -> int:
    if isinstance(buffer, list | tuple):  # mpi4py also takes [buffer, type] and [buffer, count, type]
        return max((_bytes(part) for part in buffer), default=0)
    if hasattr(buffer, "nbytes"):
        return int(buffer.nbytes)
    try:
        return memoryview(buffer).nbytes
    except TypeError:
        return 0


def judge(cases: Sequence[dict[str, Any]], found: Sequence[Facts]) -> None:
    """Raise Wrong with the likeliest mistake."""
    files = list(written(found))
    for number, case in enumerate(cases):
        size = len(case["members"])
        gradients = f"{case['shapes']}, {', '.join(case['kinds'])}"
        seen = case | {"ranks": size, "gradients": gradients if len(gradients) < 200 else f"{gradients[:200]}…"}
        for place, rank in enumerate(case["members"]):
            refuse(seen, [*_judge_case(case, place, found[rank]["cases"][number]), *files])


def written(found: Sequence[Facts]) -> Iterator[Broken]:
    """Files that answers have written by themselves."""
    for number, facts in enumerate(found):
        for kind, what in facts["events"]:
            if kind == "writes" and not _of_tensorflow(what):
                yield Broken("writes:", f"worker {number} writes a file, …{what}, and needs none")


def _of_tensorflow(file: str) -> bool:
    """Whether TensorFlow opens it: ``tf.function`` for translated code (in the folder of temporary files, or by its
    number), and Keras for its settings."""
    translated = Path(file).name.startswith("__autograph_generated_file") or file.isdigit()
    return translated or file == tempfile.gettempdir() or ".keras" in file


def _judge_case(case: dict[str, Any], place: int, facts: Facts) -> Iterator[Broken]:
    import torch

    size = len(case["members"])
    models = [model_of(case, other) for other in range(size)]
    used = [n for n, kind in enumerate(case["kinds"]) if kind != "unused"]
    wanted = sum(4 * models[0][n].numel() for n in used)
    if any(told is not None for number, (told, _) in enumerate(facts["now"]) if number not in used):
        yield Broken("value:unused", "a parameter without a gradient has got one: leave it None")
    if not all(same for _, same in facts["now"]):
        yield Broken("value:parameters", "the parameters themselves have changed: average their gradients only")
    yield from _judge_talk(facts["calls"], wanted, size)
    if facts["elsewhere"]:
        words = f"{facts['elsewhere'][0]} is called on COMM_WORLD, beside what is said on `world`"
        yield Broken("value:elsewhere", f"{words}: other workers may take no part in it")
    for path in facts["other"]:
        yield Broken("value:other", f"average changes {path}: only the gradients get new numbers")
    for state in ("now", "later"):
        for number, (told, _) in enumerate(facts[state]):
            if number not in used:
                continue
            if told is None:
                yield Broken("value:none", "a gradient is gone")
                continue
            terms = [model[number].grad for model in models]
            got = torch.tensor(told[2], dtype=getattr(torch, told[1].removeprefix("torch."))).reshape(told[0])
            own = terms[place]
            guesses = {}
            if size > 1:
                guesses = {
                    "is added up, not averaged: divide by the number of workers": sum(terms),
                    "is as before: put the averages back into parameter.grad": own,
                }
            what = "the gradient" if state == "now" else "after average was called for another model, the gradient"
            broken = list(compare("value:gradient", what, got, terms, 1 / size, guesses))
            mean = sum(terms) / size
            right_ones = got.shape == mean.shape and torch.allclose(*(one.flatten().sort()[0] for one in (got, mean)))
            if broken and right_ones:
                yield Broken("value:order", "the right numbers are in wrong places: look at the order of the elements")
            yield from broken


def _judge_talk(calls: list[tuple[str, int]], wanted: int, size: int) -> Iterator[Broken]:
    """One collective, with buffers, of as many bytes as all gradients have."""
    names = [name for name, _ in calls]
    if any("barrier" in name.lower() for name in names):
        yield Broken("value:barrier", "a barrier is a collective more, and a reduction waits for all workers by itself")
    elif pickled := [name for name in names if name[0].islower()]:
        words = f"{pickled[0]} pickles what it sends, and makes new objects of it at the other end: take "
        yield Broken("value:pickled", f"{words}{pickled[0].capitalize()}, which sends the memory as it is")
    elif len(names) > 1 and set(map(str.lower, names)) <= _THROUGH_ONE:
        words = "everything goes through one worker, which receives it from all others: let Allreduce share the work"
        yield Broken("value:through one", words, ", ".join(sorted(set(names))))
    elif len(names) > 1:
        yield Broken("value:many", "too many collectives for one step: pack all gradients together", len(names), 1)
    elif names and calls[0][1] != wanted:
        words = "the collective is given other bytes than those of the gradients"
        yield Broken("value:bytes", words, f"{calls[0][1]:,}", f"{wanted:,}")
