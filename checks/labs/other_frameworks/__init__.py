"""The exercises of this lab: the same training with MPI, Horovod, TensorFlow and JAX.

averaging.py       mpi: one collective, in workers of mpiexec (mpiexec.py)
training_tasks.py  what Horovod and TensorFlow train, and what one process would get
launching.py       starts horovodrun's and TensorFlow's workers; worker.py is one of them
judges.py          what is said about what they have done
meshes.py          jax: a batch divided over several devices of one process
"""

from __future__ import annotations

from typing import Any

from checks.engine import Reference, judge
from checks.engine.exercises import exercise
from checks.labs.other_frameworks import averaging, judges, meshes, mpiexec
from checks.labs.other_frameworks.launching import MIRRORED, start
from checks.labs.other_frameworks.training_tasks import HOROVOD, TENSORFLOW

LAB = "other_frameworks"
RANKS = [f"worker {number}" for number in range(3)]


@exercise(
    title="Average with MPI", difficulty=1, minutes=15, timeout=120, needs=("mpi4py",), official=averaging.OFFICIAL
)
def mpi(average: Any) -> dict[str, Any]:
    """Judge ``average(world, parameters)`` in workers of mpiexec."""
    return judge(averaging.OFFICIAL, averaging.play, averaging.CASES, average, ranks=(3,), run=mpiexec.run)


@exercise(title="Horovod", difficulty=2, minutes=25, timeout=300, needs=("horovod",), official=Reference(LAB, "train"))
def horovod(train: Any) -> dict[str, Any]:
    """Judge ``train(task)`` in the workers of horovodrun."""
    found = start("horovod", train, RANKS, [HOROVOD])
    judges.judge_horovod(HOROVOD, found)
    return {
        "workers": len(found),
        "losses": f"{HOROVOD['steps']}, those of one process to ±{judges.CLOSE:g}",
        "tensors reduced": f"{found[0]['reduced']} in each worker",
        "tensors broadcast": found[0]["broadcast"],
    }


@exercise(
    title="tf.distribute",
    difficulty=3,
    minutes=35,
    timeout=300,
    needs=("tensorflow",),
    official=Reference(LAB, "train_with"),
)
def tensorflow(train_with: Any) -> dict[str, Any]:
    """Judge ``train_with(strategy, task)`` in two workers, and in one process with several replicas."""
    workers, replicas = (case["ranks"] for case in TENSORFLOW)
    found = start("tensorflow", train_with, [*RANKS[:workers], MIRRORED], TENSORFLOW)
    for case, these in zip(TENSORFLOW, (found[:workers], found[workers:]), strict=True):
        judges.judge_tensorflow(case, these)
    return {
        "MultiWorkerMirroredStrategy": f"{workers} workers",
        "MirroredStrategy": f"{replicas} replicas",
        "losses and weights": f"those of one process to ±{judges.CLOSE:g}",
    }


@exercise(title="JAX", difficulty=2, minutes=25, timeout=120, needs=("jax",), official=meshes.OFFICIAL)
def jax(train_on: Any) -> dict[str, Any]:
    """Judge ``train_on(devices, task)`` in one process with several devices."""
    return judge(meshes.OFFICIAL, meshes.play, meshes.CASES, train_on)
