"""The exercises of this lab: reference counts, training loops that leak, processes instead of threads.

counting.py       predict and measure; situations.py holds what is counted
watching.py       watched_loss, collecting.py hidden_means, failing_steps.py broken_batches: three loops
sharing.py        processes; process_items.py is in the rank
launch_times.py   launch_cost
leaks.py          what has to be so in all three loops; training_loops.py is in the rank
"""

from __future__ import annotations

from typing import Any

from checks import contracts
from checks.framework import exercise
from checks.gil_and_refcounting import collecting, counting, failing_steps, launch_times, sharing, watching
from checks.points import passed


@exercise(title="Predict reference counts", difficulty=1, minutes=10)
def predict(predictions: Any) -> dict[str, Any]:
    """Judge ``predictions()``, which returns a dict from situations to references that they add."""
    return contracts.judge(counting.PREDICT, predictions)


@exercise(title="Measure reference counts", difficulty=1, minutes=10)
def measure(added_references: Any) -> dict[str, Any]:
    """Judge ``added_references(situation)``: how many references to a new tensor a situation adds."""
    return contracts.judge(counting.MEASURE, added_references)


@exercise(title="A sum that remembers", difficulty=1, minutes=10)
def watched_loss(train_and_watch: Any) -> dict[str, Any]:
    """Judge ``train_and_watch(model, optimizer, batches, watched)``, which returns a mean loss."""
    return contracts.judge(watching.CONTRACT, train_and_watch)


@exercise(title="A hook that collects", difficulty=2, minutes=15)
def hidden_means(train_and_log: Any) -> dict[str, Any]:
    """Judge ``train_and_log(model, optimizer, batches)``, which returns a list of means."""
    return contracts.judge(collecting.CONTRACT, train_and_log)


@exercise(title="Errors that hold on", difficulty=2, minutes=15)
def broken_batches(train_through_errors: Any) -> dict[str, Any]:
    """Judge ``train_through_errors(train_step, batches)``, which returns numbers of batches and texts."""
    return contracts.judge(failing_steps.CONTRACT, train_through_errors)


@exercise(title="Processes instead of threads", difficulty=2, minutes=20, timeout=240)
def processes(run_parallel: Any) -> dict[str, Any]:
    """Judge ``run_parallel(function, items, workers)``: results in the order of the items."""
    return contracts.judge(sharing.CONTRACT, run_parallel)


@exercise(title="What launches cost", difficulty=2, minutes=25, parts={"step_time": 1, "smallest_graph": 1})
def launch_cost(step_time: Any, smallest_graph: Any) -> dict[str, Any]:
    """Judge ``step_time(kernels, launch, held, gpus)`` and ``smallest_graph(kernels, launch, held, gpus, slack)``."""
    figures = contracts.judge(launch_times.STEP_TIME, step_time)
    passed("step_time")
    return figures | contracts.judge(launch_times.SMALLEST_GRAPH, smallest_graph)
