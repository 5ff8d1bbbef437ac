"""The exercises of this lab: the same training with MPI, Horovod and TensorFlow, on real processes that may die."""

from __future__ import annotations

from typing import Any

from checks import exercise
from checks.contracts import cases_of, refuse
from checks.core import judge
from checks.other_frameworks import averaging, mpiexec, training_tasks
from checks.other_frameworks.launching import MIRRORED, start, start_twice

RANKS = [f"worker {number}" for number in range(3)]


@exercise(
    title="Average with MPI", difficulty=1, minutes=15, timeout=120, needs=("mpi4py",), official=averaging.OFFICIAL
)
def mpi(average: Any) -> dict[str, Any]:
    """Judge ``average(world, parameters)`` in workers of mpiexec."""
    return judge(averaging.OFFICIAL, averaging.play, averaging.CASES, average, ranks=(3,), run=mpiexec.run)


@exercise(title="Horovod", difficulty=2, minutes=30, timeout=300, needs=("horovod",))
def horovod(train: Any) -> dict[str, Any]:
    """Judge ``train(task)`` in the workers of horovodrun."""
    from checks.other_frameworks.judges import CLOSE, judge_horovod

    cases = cases_of("other_frameworks.horovod", training_tasks.draw_horovod)
    case = cases[0]
    found = start("horovod", train, RANKS[: case["ranks"]], cases)
    refuse(case, judge_horovod(case, found))
    return {
        "workers": len(found),
        "losses": f"{case['steps']}, those of one process to ±{CLOSE:g}",
        "tensors reduced": f"{found[0]['reduced']} in each worker",
        "tensors broadcast": found[0]["broadcast"],
        "checkpoint": "by worker 0",
    }


@exercise(title="tf.distribute", difficulty=3, minutes=35, timeout=300, needs=("tensorflow",))
def tensorflow(train_with: Any) -> dict[str, Any]:
    """Judge ``train_with(strategy, task)`` in two workers, and in one process with several replicas."""
    from checks.other_frameworks.judges import CLOSE, judge_tensorflow

    cases = cases_of("other_frameworks.tensorflow", training_tasks.draw_tensorflow)
    workers, replicas = (case["ranks"] for case in cases)
    found = start("tensorflow", train_with, [*RANKS[:workers], MIRRORED], cases)
    for case, these in zip(cases, (found[:workers], found[workers:]), strict=True):
        refuse(case, judge_tensorflow(case, these))
    return {
        "MultiWorkerMirroredStrategy": f"{workers} workers",
        "MirroredStrategy": f"{replicas} replicas",
        "losses and weights": f"those of one process to ±{CLOSE:g}",
        "checkpoint": "by worker 0",
    }


@exercise(title="A worker dies", difficulty=3, minutes=30, timeout=600, needs=("horovod",))
def dead_worker(train_on: Any) -> dict[str, Any]:
    """Judge ``train_on(task)``, which horovodrun starts twice: one of the first workers is killed."""
    from checks.other_frameworks.judges import CLOSE, judge_accident, judge_begin

    cases = cases_of("other_frameworks.dead_worker", training_tasks.draw_accident)
    case, workers = cases[0], RANKS[: cases[0]["ranks"]]
    found = start_twice(train_on, workers, case, lambda firsts: refuse(case, judge_begin(case, firsts)))
    refuse(case, judge_accident(case, found))
    worker, step = case["accident"]
    return {
        "workers": len(found),
        "killed": f"worker {worker}, in step {step} of {case['steps']}",
        "started again": f"{sum(map(len, found[0]['reads'])) // case['batch']} steps to go",
        "final weights": f"those of one process in which nothing has happened, to ±{CLOSE:g}",
    }
