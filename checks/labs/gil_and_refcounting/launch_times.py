"""Check of ``step_time`` and ``smallest_graph``: what launches cost, and how many kernels a graph needs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, leaves, refuse
from checks.engine.plain import kind_of, number

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
    "smaller graphs are quick enough too: the smallest is asked for": {
        "range(1, len(kernels) + 1)": "range(len(kernels), 0, -1)"},
    "that is the number of graphs, not of kernels in one": {"return size": "return len(graphs)"},
    "what is left at the end is a smaller graph, and has to be computed too": {
        GRAPHS: "range(0, len(kernels) - size + 1, size)"},
    "the smaller graph comes at the end, not first": {
        GRAPHS: "range(-(-len(kernels) % size), len(kernels), size)",
        "first : first": "max(first, 0) : first"},
    "an empty graph at the end is launched too": {GRAPHS: "range(0, len(kernels) + 1, size)"},
    "a graph computes as long as its kernels together, not as the longest": {"[sum(": "[max("},
    "any number of kernels may be in a graph, not only powers of two": {
        "range(1, len(kernels) + 1)": "[m for m in range(1, len(kernels) + 1) if m & (m - 1) == 0]"},
    "that is by the lecture's law, for the long run: ask step_time": {
        "step_time(graphs, launch, held, gpus)": "max(launch, gpus * held) / size * len(kernels)"},
    "the limit is a share of the kernels' own time, not of the step's without graphs": {
        LIMIT: "<= slack * step_time(kernels, launch, held, gpus)"},
})  # fmt: skip
OFFICIAL = Reference(
    "gil_and_refcounting", "step_time smallest_graph", {**STEP_TIME.mistakes, **SMALLEST_GRAPH.mistakes}
)
THE_LECTURES = {"kernels": [10.0] * 24, "launch": 10.0, "held": 3.0, "gpus": 8}


def _chain(rng: random.Random) -> dict[str, Any]:
    launch, usual = rng.randint(4, 12), rng.choice((2.0, 8.0, 30.0))
    kernels = [round(usual * rng.uniform(0.3, 2), 1) for _ in range(rng.choice((3, 5, 7, 40)))]
    held = rng.choice((1.0, launch / 4, launch / 2, launch))
    return {"kernels": kernels, "launch": launch, "held": held, "gpus": rng.choice((1, 2, 3, 8, 12))}


def chains(rng: random.Random, number: int) -> dict[str, Any]:
    first = [{"kernels": [10.0], "launch": 10.0, "held": 3.0, "gpus": 1}, THE_LECTURES | {"kernels": [20.0, 5.0]},
             THE_LECTURES | {"held": 0.0}, THE_LECTURES]  # fmt: skip
    return first[number] if number < len(first) else _chain(rng)


def limits(rng: random.Random, number: int) -> dict[str, Any]:
    first = [
        {"kernels": [50.0] * 6, "launch": 10.0, "held": 3.0, "gpus": 4, "slack": 1.1},  # as it is
        {"kernels": [6.0] * 4, "launch": 10.0, "held": 3.0, "gpus": 8, "slack": 2.4},  # all in one graph
        {"kernels": [2.0] * 3, "launch": 10.0, "held": 3.0, "gpus": 1, "slack": 1.7},  # not even then
        {"kernels": [4.0] * 4, "launch": 8.0, "held": 2.0, "gpus": 1, "slack": 2.25},  # exactly at the limit
        {"kernels": [1.0] * 4, "launch": 10.0, "held": 10.0, "gpus": 1, "slack": 4.5},  # an empty graph would cost
        THE_LECTURES | {"slack": 1.2},
    ]
    return (
        first[number]
        if number < len(first)
        else _chain(rng) | {"slack": round(round(rng.uniform(1.02, 2), 2) + 0.0003, 4)}
    )


def play(case: dict[str, Any], step_time: Callable[..., Any]) -> dict[str, Any]:
    seen = {}
    for first in 1, 2, len(case["kernels"]):  # so that the first wrong launch has a name
        some = case | {"kernels": case["kernels"][:first]}
        with leaves(kernels=some["kernels"]):
            found = step_time(*some.values())
        refuse(number(found) is None, "step_time returns a number of microseconds", measured=kind_of(found))
        alone = {1: ", with the first launch of each thread alone", 2: ", with the first two launches of each thread"}
        seen["the time at which the last GPU is done" + alone.get(first, "")] = number(found)
    return seen


def play_limit(case: dict[str, Any], smallest_graph: Callable[..., Any]) -> dict[str, Any]:
    with leaves(kernels=case["kernels"]):
        found = smallest_graph(*case.values())
    words = "smallest_graph returns a whole number, or None"
    refuse(found is not None and number(found, whole=True) is None, words, measured=kind_of(found))
    return {"the number of kernels in a graph": number(found, whole=True)}
