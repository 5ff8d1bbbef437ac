"""The exercises of this lab: the same training with MPI, with Horovod and with TensorFlow, on real processes."""

from __future__ import annotations

import os
import random
from typing import Any

from utils.checks import exercise
from utils.checks.contracts.judging import SEED
from utils.checks.other_frameworks import averaging
from utils.checks.other_frameworks.launching import start

RANKS = [f"worker {number}" for number in range(3)]


@exercise(title="Average with MPI", difficulty=1, minutes=15, timeout=120, needs=("mpi4py",))
def mpi(average: Any) -> dict[str, Any]:
    """Judge ``average(world, parameters)`` in three workers of mpiexec."""
    cases = averaging.drawn(random.Random(f"other_frameworks.mpi {os.environ.get(SEED, '0')}"))
    averaging.judge(cases, start("mpi", average, RANKS, cases))
    return {
        "workers": "3, 2, 1",
        "models": len(cases),
        "collectives": "1 a step",
        "bytes": "those of the gradients",
    }


@exercise(title="Horovod", difficulty=2, minutes=30, timeout=120, needs=("horovod",))
def horovod(train: Any) -> dict[str, Any]:
    """Judge ``train(task)`` in three workers of horovodrun."""
    from utils.checks.other_frameworks.judges import judge_horovod

    found = start("horovod", train, RANKS)
    apart = judge_horovod(found)
    return {
        "workers": len(found),
        "losses": f"{len(found[0]['logged'])}, those of one process to ±{_rounded(apart)}",
        "tensors reduced": f"{found[0]['reduced']} in each worker",
        "tensors broadcast": found[0]["broadcast"],
        "checkpoint": "by worker 0",
    }


@exercise(title="tf.distribute", difficulty=3, minutes=35, timeout=120, needs=("tensorflow",))
def tensorflow(train_with: Any) -> dict[str, Any]:
    """Judge ``train_with(strategy, task)`` in two workers, and in one process with three replicas."""
    from utils.checks.other_frameworks.judges import judge_tensorflow
    from utils.checks.other_frameworks.worker import REPLICAS, WORKERS

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
