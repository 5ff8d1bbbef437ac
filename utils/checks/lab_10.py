"""The exercises of lab 10: the same training with MPI, with Horovod and with TensorFlow, on real processes."""

from __future__ import annotations

from typing import Any

from utils.checks import average_10, exercise
from utils.checks.launch_10 import start

LAB = "10_other_frameworks"
RANKS = [f"worker {number}" for number in range(3)]


@exercise(lab=LAB, title="Average with MPI", difficulty=1, minutes=15, timeout=120, needs=("mpi4py",))
def mpi(average: Any) -> dict[str, Any]:
    """Judge ``average(world, parameters)`` in three workers of mpiexec."""
    start("mpi", average, RANKS)
    return {
        "workers": "3, 2, 1",
        "models": len(average_10.MODELS),
        "collectives": "1 a step",
        "bytes": "those of the gradients",
    }


@exercise(lab=LAB, title="Horovod", difficulty=2, minutes=30, timeout=120, needs=("horovod",))
def horovod(train: Any) -> dict[str, Any]:
    """Judge ``train(task)`` in three workers of horovodrun."""
    from utils.checks.judges_10 import judge_horovod

    found = start("horovod", train, RANKS)
    apart = judge_horovod(found)
    return {
        "workers": len(found),
        "losses": f"{len(found[0]['logged'])}, those of one process to ±{_rounded(apart)}",
        "tensors reduced": f"{found[0]['reduced']} in each worker",
        "tensors broadcast": found[0]["broadcast"],
        "checkpoint": "by worker 0",
    }


@exercise(lab=LAB, title="tf.distribute", difficulty=3, minutes=35, timeout=120, needs=("tensorflow",))
def tensorflow(train_with: Any) -> dict[str, Any]:
    """Judge ``train_with(strategy, task)`` in two workers, and in one process with three replicas."""
    from utils.checks.judges_10 import judge_tensorflow
    from utils.checks.worker_10 import REPLICAS, WORKERS

    names = [f"worker {number}" for number in range(WORKERS)]
    *several, mirrored = start("tensorflow", train_with, [*names, f"the process with {REPLICAS} replicas"])
    apart = judge_tensorflow(several, mirrored)
    return {
        "MultiWorkerMirroredStrategy": f"{WORKERS} workers",
        "MirroredStrategy": f"{REPLICAS} replicas",
        "losses and weights": f"those of one process to ±{_rounded(apart)}",
        "checkpoint": "by worker 0",
    }


def _rounded(apart: float) -> str:
    """A power of ten that is not smaller: the last digits differ from machine to machine."""
    bound = 1e-5
    while apart > bound:
        bound *= 10
    return f"{bound:g}"
