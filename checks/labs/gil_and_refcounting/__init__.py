"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

predicting.py     predict: how many references a function adds
measuring.py      measure: a tool that counts them
collecting.py     hidden_means, failing_steps.py broken_batches: two loops
sharing.py        processes: items for processes
holding.py        held: how long a launch holds the GIL, from times of threads
launch_times.py   launch_cost: a step's time, and how large its graphs have to be
leaks.py          for the two loops: a small model, and what is alive after each step
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.gil_and_refcounting import (
    collecting,
    failing_steps,
    holding,
    launch_times,
    measuring,
    predicting,
    sharing,
)
from checks.points import passed

TIMES = {"step_time": 1, "smallest_graph": 1}


@exercise(title="Predict reference counts", difficulty=1, minutes=10, official=predicting.OFFICIAL)
def predict(predictions: Any) -> dict[str, Any]:
    """Judge ``predictions()``, which returns a dict from functions' names to references that they add."""
    judge(predicting.OFFICIAL, predicting.play, [{}], predictions)
    return {"predictions": len(predicting.WHY), "measured in this Python": "the same"}


@exercise(title="Measure reference counts", difficulty=1, minutes=10, official=measuring.OFFICIAL)
def measure(added_references: Any) -> dict[str, Any]:
    """Judge ``added_references(situation)``: how many references to a new tensor a situation adds."""
    return judge(measuring.OFFICIAL, measuring.play, measuring.CASES, added_references)


@exercise(title="A hook that collects", difficulty=2, minutes=15, official=collecting.OFFICIAL)
def hidden_means(train_and_log: Any) -> dict[str, Any]:
    """Judge ``train_and_log(model, optimizer, batches)``, which returns a list of means."""
    return judge(collecting.OFFICIAL, collecting.play, collecting.CASES, train_and_log, timeout=150)


@exercise(title="Errors that hold on", difficulty=2, minutes=15, official=failing_steps.OFFICIAL)
def broken_batches(train_through_errors: Any) -> dict[str, Any]:
    """Judge ``train_through_errors(train_step, batches)``, which returns numbers of batches and texts."""
    return judge(failing_steps.OFFICIAL, failing_steps.play, failing_steps.CASES, train_through_errors, timeout=150)


@exercise(title="Processes instead of threads", difficulty=2, minutes=20, timeout=240, official=sharing.OFFICIAL)
def processes(run_parallel: Any) -> dict[str, Any]:
    """Judge ``run_parallel(function, items, workers)``: results in the order of the items."""
    return judge(sharing.OFFICIAL, sharing.play, sharing.CASES, run_parallel, timeout=200)


@exercise(title="How long does a launch hold the GIL?", difficulty=2, minutes=20, official=holding.OFFICIAL)
def held(launch_and_held: Any) -> dict[str, Any]:
    """Judge ``launch_and_held(runs)``, which returns microseconds of a launch, and of its part with the GIL."""
    return judge(holding.OFFICIAL, holding.play, holding.cases, launch_and_held)


@exercise(title="What launches cost", difficulty=2, minutes=25, parts=TIMES, official=launch_times.OFFICIAL)
def launch_cost(step_time: Any, smallest_graph: Any) -> dict[str, Any]:
    """Judge ``step_time(kernels, launch, held, gpus)`` and ``smallest_graph(kernels, launch, held, gpus, slack)``."""
    judge(launch_times.STEP_TIME, launch_times.play, launch_times.chains, step_time)
    passed("step_time")
    return judge(launch_times.SMALLEST_GRAPH, launch_times.play_limit, launch_times.limits, smallest_graph)
