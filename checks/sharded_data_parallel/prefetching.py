"""Exercise 5: ``run(units, x)``: the next unit's all-gather is on its way while this one computes.

The units write down what is done with them. A small simulation puts that on a timeline, by the rules of streams: an
all-gather begins when the network is free and when what was launched before it has ended; ``wait()`` makes what is
launched afterwards wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.contracts.guarding import guarded

if TYPE_CHECKING:
    from torch import Tensor

    Note = Callable[..., Any]

AT_ONCE = 2


class Work:
    """An all-gather that is on its way."""

    __slots__ = ("wait",)

    def __init__(self, number: int, note: Note) -> None:
        self.wait = lambda: note("wait", number)


class Unit:
    """A layer whose parameters are gathered, used and freed.

    ``gather()`` begins to gather them and returns the ``Work``; ``unit(x)`` computes with them; ``free()`` gives their
    memory back. ``note`` is all that it does.
    """

    __slots__ = ("_compute", "free", "gather")

    def __init__(self, number: int, note: Note) -> None:
        self.gather = lambda: note("gather", number) or Work(number, note)
        self._compute = lambda x: note("compute", number, x)
        self.free = lambda: note("free", number)

    def __call__(self, x: Tensor) -> Tensor:
        return self._compute(x)


def _factor(number: int) -> float:
    return 0.5 + number % 7


def draw(rng: random.Random) -> list[Case]:
    counts = (6, 1, 2, rng.randint(12, 30))
    times = ((1.0, 2.0), (1.0, 1.0), (1.0, 3.0), (float(rng.randint(2, 4)), 1.0))
    return [
        {"ranks": 1, "units": count, "gather, ms": gather, "compute, ms": compute, "seed": rng.getrandbits(30)}
        for count, (gather, compute) in zip(counts, times, strict=True)
    ]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch

    log: list[list[Any]] = []

    def note(what: str, number: int, x: Tensor | None = None) -> Tensor | None:
        log.append([what, number])
        return None if x is None else x * _factor(number) + 1

    units = [Unit(number, guarded(note)) for number in range(case["units"])]
    x = torch.randn(3, generator=torch.Generator().manual_seed(case["seed"]))
    right = x.clone()
    for number in range(case["units"]):
        right = right * _factor(number) + 1
    y = watch.call("run", units=units, x=x)
    facts |= {"log": log, "right": isinstance(y, torch.Tensor) and torch.equal(y, right)}


def timeline(log: Sequence[Sequence[Any]], gather: float, compute: float) -> float:
    """Milliseconds until all is done."""
    gpu = network = 0.0
    over: dict[int, float] = {}
    for what, number in log:
        if what == "gather":
            network = max(network, gpu) + gather
            over[number] = network
        elif what == "wait":
            gpu = max(gpu, over.get(number, 0.0))
        elif what == "compute":
            gpu += compute
    return max(gpu, network)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    facts, count = world[0], case["units"]
    log, began, waited, used = facts["log"], set(), set(), set()
    there: set[int] = set()
    most = 0
    for what, number in log:
        name = f"unit {number}"
        if what == "gather":
            if number in began:
                yield Broken("use:0 twice", f"{name} is gathered twice: once is enough in a forward pass")
            began.add(number)
            there.add(number)
            most = max(most, len(there))
        elif what == "wait":
            waited.add(number)
        elif what == "compute":
            if number not in there:
                yield Broken("use:1 absent", f"{name} computes, and its parameters are not gathered")
            elif number not in waited:
                words = "computes before anybody has waited for its all-gather: it may read anything"
                yield Broken("use:2 unwaited", f"{name} {words}")
            if number in used:
                yield Broken("use:7 again", f"{name} computes more than once: once is enough")
            used.add(number)
        else:
            if number not in used:
                yield Broken("use:3 early", f"{name} is freed before it has computed")
            elif number not in there:
                yield Broken("use:6 again", f"{name} is freed, and it is not there: it was freed before")
            there.discard(number)
    if len(used) < count:
        yield Broken("use:4 unused", "not every unit has computed", len(used), count)
        return
    if there:
        words = "units are gathered and not freed after their use"
        yield Broken("use:5 left", words, f"units {sorted(there)}", "none")
        return
    if not facts["right"]:
        yield Broken("value:", "the output is not that of all units, one after the other")
    if most > AT_ONCE:
        words = "more units are gathered at the same time than the one that computes and the next one"
        yield Broken("memory:", words, most, AT_ONCE)
    gather, compute = case["gather, ms"], case["compute, ms"]
    took, best = timeline(log, gather, compute), gather + (count - 1) * max(gather, compute) + compute
    if took > best:
        words = "the GPU waits for all-gathers that could run while it computes"
        if took >= count * (gather + compute):
            words = f"nothing overlaps: {words}. Begin the next all-gather before you compute"
        yield Broken("work:slow", words, f"{took:g} ms (simulated)", f"{best:g} ms")


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, world = played[0]
    gather, compute = case["gather, ms"], case["compute, ms"]
    return {
        f"{case['units']} units, simulated": f"{timeline(world[0]['log'], gather, compute):g} ms",
        "one after the other": f"{case['units'] * (gather + compute):g} ms",
        "gathered at the same time": f"at most {AT_ONCE}",
    }


CONTRACT = Contract(
    name="sharded_data_parallel.prefetch",
    rules={"run": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(("use:?*", "{}"), ("value:*", "{}"), ("memory:*", "{}"), ("work:*", "{}")),
    figures=figures,
)
