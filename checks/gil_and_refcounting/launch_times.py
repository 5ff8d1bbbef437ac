"""Exercise 7: ``step_time(kernels, launch, held, gpus)`` and ``smallest_graph(kernels, launch, held, gpus, slack)``."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.plain import number

Chain = list[Any]  # kernels, launch, held, gpus: times in microseconds
THE_LECTURES = ([10.0] * 24, 10.0, 3.0, 8)
CLEAR = 1e-3  # of a limit: no step is so near to it that rounding could decide
EXACT = 1e-9


def finish(kernels: Sequence[float], launch: float, held: float, gpus: int) -> float:
    """When the last GPU is done: threads take turns at the GIL, and never wait for a kernel."""
    gil, ready, done = 0.0, [0.0] * gpus, [0.0] * gpus
    for kernel in kernels:
        for gpu in range(gpus):
            begin = max(gil, ready[gpu])
            gil, ready[gpu] = begin + held, begin + launch
            done[gpu] = max(done[gpu], ready[gpu]) + kernel
    return max(done)


def in_graphs(kernels: Sequence[float], size: int) -> list[float]:
    """So many kernels at a time become one."""
    return [sum(kernels[first : first + size]) for first in range(0, len(kernels), size)]


def smallest(kernels: Sequence[float], launch: float, held: float, gpus: int, slack: float) -> int | None:
    limit = slack * sum(kernels)
    sizes = range(1, len(kernels) + 1)
    return next((m for m in sizes if finish(in_graphs(kernels, m), launch, held, gpus) <= limit), None)


# --- step_time


def draw(rng: random.Random) -> list[Case]:
    chains = [list(THE_LECTURES), *(_chain(rng) for _ in range(20))]
    chains[1][0] = chains[1][0][:1]
    chains[2][2] = 0.0  # a launch that never holds the GIL
    chains[3][0] = [*chains[3][0], *(kernel + 0.5 for kernel in chains[3][0][:30])]
    return [{"ranks": 1, "chains": chains, "seed": 0}]


def _chain(rng: random.Random) -> Chain:
    launch, length = round(rng.uniform(4, 12), 1), rng.randint(3, 40)
    usual = rng.choice((launch / 4, launch, 4 * launch))
    kernels = [round(usual * rng.uniform(0.3, 2), 3) for _ in range(length)]
    return [kernels, launch, round(launch * rng.choice((0.1, 0.3, 0.5, 1)), 1), rng.choice((1, 2, 3, 4, 6, 8, 12))]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    facts["times"] = []
    for kernels, *others in case["chains"]:
        found = watch.call("step_time", kernels=list(kernels), launch=others[0], held=others[1], gpus=others[2])
        time = number(found)
        facts["times"].append(f"a {type(found).__name__}" if time is None else float(time))


def _one_after_the_other(kernels: Sequence[float], launch: float, held: float, gpus: int) -> float:
    before = held * len(kernels) * (gpus - 1)  # thread 0 has all its turns, then thread 1
    return before + finish(kernels, launch, held, 1)


def _waiting(kernels: Sequence[float], launch: float, held: float, gpus: int) -> float:
    gil, ready = 0.0, [0.0] * gpus
    for kernel in kernels:
        for gpu in range(gpus):
            begin = max(gil, ready[gpu])
            gil, ready[gpu] = begin + held, begin + launch + kernel
    return max(ready)


MISTAKES: dict[str, Callable[[Sequence[float], float, float, int], float]] = {
    "a thread does not wait for its kernel: it launches the next one while the GPU computes": _waiting,
    "that is the lecture's law, for the long run; kernels differ, and the first one must be launched before it runs": (
        lambda k, launch, held, n: sum(max(one, launch, n * held) for one in k)
    ),
    "nobody waits for the GIL in it": lambda k, launch, held, n: finish(k, launch, 0.0, n),
    "the threads hold the GIL for their whole launch in it, not for its first part": (
        lambda k, launch, held, n: finish(k, launch, launch, n)
    ),
    "launching and computing go on at the same time": lambda k, launch, held, n: sum(k) + launch * len(k),
    "one thread has all its turns before the next has any": _one_after_the_other,
}


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    times = world[0]["times"]
    for chain, found in zip(case["chains"], times, strict=False):
        kernels, launch, held, gpus = chain
        call = f"step_time(…{len(kernels)} kernels, {launch}, {held}, {gpus})"
        if isinstance(found, str):
            yield Broken("returns:", f"{call} is a number of microseconds", found)
            return
        right = finish(*chain)
        if math.isclose(found, right, rel_tol=EXACT):
            continue
        why = next((why for why, mistake in MISTAKES.items() if _gives(mistake, case["chains"], times)), "")
        yield Broken("value:time", f"{why or 'that is not when the last GPU is done'}. See {call}", found, right)
        return


def _gives(mistake: Callable[..., float], chains: Sequence[Chain], times: Sequence[Any]) -> bool:
    """Whether a mistake gives all times."""
    return all(
        isinstance(found, float) and math.isclose(found, mistake(*chain), rel_tol=EXACT)
        for chain, found in zip(chains, times, strict=False)
    )


STEP_TIME = Contract(
    name="gil_and_refcounting.step_time",
    rules={"step_time": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("state:kernels*", "step_time changes the list `kernels`: whoever calls it still needs it"),
        ("value:*", "{}"),
    ),
    figures=lambda played: {"chains": len(played[0][0]["chains"])},
)

# --- smallest_graph


def draw_limits(rng: random.Random) -> list[Case]:
    chains: list[Chain] = [
        [*THE_LECTURES, 1.2],
        [[50.0] * 6, 10.0, 3.0, 4, 1.1],  # as it is
        [[6.0] * 4, 10.0, 3.0, 8, 2.4],  # all in one graph
        [[2.0] * 3, 10.0, 3.0, 1, 1.7],  # not even then: the kernels alone take 6
        [[4.0] * 4, 8.0, 2.0, 1, 2.25],  # as it is, exactly at the limit: one launch more is too much
    ]
    while len(chains) < 20:
        chain = [*_chain(rng), round(rng.uniform(1.02, 2), 2)]
        limit = chain[-1] * sum(chain[0])
        times = [finish(in_graphs(chain[0], m), *chain[1:4]) for m in range(1, len(chain[0]) + 1)]
        found = smallest(*chain)
        if any(abs(time - limit) <= CLEAR * limit for time in times) or (found == 1 and rng.random() > 0.2):
            continue
        if len(chains) > 8 or _rest_first(*chain) != found:
            chains.append(chain)
    return [{"ranks": 1, "chains": chains, "seed": 0}]


def _rest_first(kernels: Sequence[float], launch: float, held: float, gpus: int, slack: float) -> int | None:
    """What is found with the smaller graph in front."""
    sizes = range(1, len(kernels) + 1)
    times = [finish(in_graphs(kernels[::-1], size)[::-1], launch, held, gpus) for size in sizes]
    return next((size for size, time in zip(sizes, times, strict=True) if time <= slack * sum(kernels)), None)


def scene_limits(case: Case, watch: Any, facts: Facts) -> None:
    facts["sizes"] = []
    for kernels, launch, held, gpus, slack in case["chains"]:
        found = watch.call("smallest_graph", kernels=list(kernels), launch=launch, held=held, gpus=gpus, slack=slack)
        size = number(found, whole=True)
        facts["sizes"].append(f"a {type(found).__name__}" if size is None and found is not None else size)


def judge_limits(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for chain, found in zip(case["chains"], world[0]["sizes"], strict=False):
        kernels, launch, held, gpus, slack = chain
        call = f"smallest_graph(…{len(kernels)} kernels, {launch}, {held}, {gpus}, {slack})"
        right = smallest(*chain)
        if found == right:
            continue
        if isinstance(found, str):
            yield Broken("returns:", f"{call} is a whole number, or None", found)
        elif found is None or right is None:
            yield Broken("value:none", f"{call}: {_none(right, len(kernels))}", str(found), str(right))
        elif not 1 <= found <= len(kernels):
            yield Broken("value:size", f"{call} is a number of kernels, from 1 to all of them", found, right)
        else:
            time, limit = finish(in_graphs(kernels, found), launch, held, gpus), slack * sum(kernels)
            slow = f"with {found} kernels in a graph it takes {time:.1f} µs, and at most {limit:.1f} are allowed"
            words = slow if time > limit else f"fewer than {found} kernels in a graph are enough"
            yield Broken("value:size", f"{call}: {words}", found, right)
        return


def _none(right: int | None, length: int) -> str:
    if right is None:
        return f"not even one graph of all {length} kernels is quick enough, so it is None"
    return "there is such a number"


SMALLEST_GRAPH = Contract(
    name="gil_and_refcounting.smallest_graph",
    rules={"smallest_graph": Rules()},
    draw=draw_limits,
    scene=scene_limits,
    judge=judge_limits,
    mistakes=(
        ("state:kernels*", "smallest_graph changes the list `kernels`: whoever calls it still needs it"),
        ("value:*", "{}"),
    ),
    figures=lambda played: {"graphs": len(played[0][0]["chains"])},
)
