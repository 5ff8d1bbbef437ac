"""Check of ``step_time`` and ``smallest_graph``: what launches cost, and how many kernels a graph needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, judge, leaves, refuse
from checks.engine.plain import kind_of, number
from checks.points import passed

BEGIN, DONE = "max(gil, ready[gpu])", "done[gpu] = max(done[gpu], ready[gpu]) + kernel"
LOOPS = "    for kernel in kernels:\n        for gpu in range(gpus):\n"
STEP_TIME = Reference("gil_and_refcounting", "step_time", {
    "a kernel begins when its launch is over, not with it": {DONE: DONE.replace("ready[gpu]", "begin")},
    "a kernel begins when its GPU has finished the kernel before": {DONE: "done[gpu] = ready[gpu] + kernel"},
    "a thread does not wait for its kernel: it launches the next one while the GPU computes": {
        DONE: "ready[gpu] += kernel\n            done[gpu] = ready[gpu]"},
    "nobody waits for the GIL: a launch begins when its thread is ready and the GIL is free": {BEGIN: "ready[gpu]"},
    "a thread holds the GIL only in the first part of its launch, not for the whole": {
        "gil = begin + held": "gil = begin + launch"},
    "a thread's next launch begins when its last one is over, not as soon as the GIL is free": {BEGIN: "gil"},
    "one thread has all its turns before the next has any: they take turns, launch by launch": {
        LOOPS: "    for gpu in range(gpus):\n        for kernel in kernels:\n"},
})  # fmt: skip
GRAPHS, LIMIT = "range(0, len(kernels), size)", "<= slack * sum(kernels)"
SMALLEST_GRAPH = Reference("gil_and_refcounting", "smallest_graph", {
    "not even one graph of all kernels is quick enough, so it is None": {"return None": "return len(kernels)"},
    "exactly at the limit is quick enough: at most, not less": {LIMIT: LIMIT.replace("<=", "<")},
    "what is left at the end is a smaller graph, and has to be computed too": {
        GRAPHS: "range(0, len(kernels) - size + 1, size)"},
    "an empty graph at the end is launched too": {GRAPHS: "range(0, len(kernels) + 1, size)"},
    "that is by the lecture's law, for the long run: ask step_time": {
        "step_time(graphs, launch, held, gpus)": "max(launch, gpus * held) / size * len(kernels)"},
    "the limit is a share of the kernels' own time, not of the step's without graphs": {
        LIMIT: "<= slack * step_time(kernels, launch, held, gpus)"},
})  # fmt: skip
OFFICIAL = Reference(
    "gil_and_refcounting", "step_time smallest_graph", {**STEP_TIME.mistakes, **SMALLEST_GRAPH.mistakes}
)
TIMES = {"step_time": 1, "smallest_graph": 1}
CHAINS = [  # kernels, launch, held, gpus, slack
    ([50.0] * 6, 10.0, 3.0, 4, 1.1),  # no graphs are needed
    ([6.0] * 4, 10.0, 3.0, 8, 2.4),  # all in one graph
    ([2.0] * 3, 10.0, 3.0, 1, 1.7),  # not even then
    ([4.0] * 4, 8.0, 2.0, 1, 2.25),  # exactly at the limit
    ([1.0] * 4, 10.0, 10.0, 1, 4.5),  # an empty graph would cost
    ([10.0] * 24, 10.0, 3.0, 8, 1.2),  # the lecture's
    ([5.0, 4.5, 10.5, 11.0, 9.0], 7.0, 0.0, 2, 1.2),
    ([12.0, 3.0, 30.5, 8.0, 1.5, 22.0, 17.5], 5.0, 2.5, 3, 1.15),
]
CASES = [dict(zip(("kernels", "launch", "held", "gpus", "slack"), chain, strict=True)) for chain in CHAINS]


def play(case: dict[str, Any], step_time: Callable[..., Any]) -> dict[str, Any]:
    with leaves(kernels=case["kernels"]):
        found = step_time(case["kernels"], case["launch"], case["held"], case["gpus"])
    refuse(number(found) is None, "step_time returns a number of microseconds", measured=kind_of(found))
    return {"the time at which the last GPU is done": number(found)}


def play_limit(case: dict[str, Any], smallest_graph: Callable[..., Any]) -> dict[str, Any]:
    with leaves(kernels=case["kernels"]):
        found = smallest_graph(*case.values())
    fault = "smallest_graph returns a whole number, or None"
    refuse(found is not None and number(found, whole=True) is None, fault, measured=kind_of(found))
    return {"the number of kernels in a graph": found}


@exercise(OFFICIAL, title="What launches cost", difficulty=2, minutes=25, parts=TIMES)
def launch_cost(step_time: Any, smallest_graph: Any) -> dict[str, Any]:
    """Judge ``step_time(kernels, launch, held, gpus)`` and ``smallest_graph(kernels, launch, held, gpus, slack)``."""
    judge(STEP_TIME, play, CASES, step_time)
    passed("step_time")
    return judge(SMALLEST_GRAPH, play_limit, CASES, smallest_graph)
