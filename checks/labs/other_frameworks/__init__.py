"""The exercises of this lab: the same training with MPI, Horovod, TensorFlow and JAX.

averaging.py   mpi: one collective for all gradients
scaling.py     horovod: a batch that grows with the workers
replicas.py    tensorflow: one training for several strategies
meshes.py      jax: a batch divided over several devices of one process
workers.py     starts mpiexec's, horovodrun's and TensorFlow's workers
"""

from __future__ import annotations

from functools import partial
from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.other_frameworks import averaging, meshes, replicas, scaling, workers


@exercise(
    title="Average with MPI", difficulty=1, minutes=15, timeout=120, needs=("mpi4py",), official=averaging.OFFICIAL
)
def mpi(average: Any) -> dict[str, Any]:
    """Judge ``average(world, parameters)`` in workers of mpiexec."""
    run = partial(workers.run, "mpi")
    return judge(averaging.OFFICIAL, averaging.play, averaging.CASES, average, ranks=(3,), timeout=100, run=run)


@exercise(title="Horovod", difficulty=2, minutes=25, needs=("horovod",), official=scaling.OFFICIAL)
def horovod(train: Any) -> dict[str, Any]:
    """Judge ``train(task)`` in the workers of horovodrun."""
    run = partial(workers.run, "horovod")
    return judge(scaling.OFFICIAL, scaling.play, scaling.CASES, train, ranks=(3,), timeout=100, run=run)


@exercise(title="tf.distribute", difficulty=3, minutes=35, needs=("tensorflow",), official=replicas.OFFICIAL)
def tensorflow(train_with: Any) -> dict[str, Any]:
    """Judge ``train_with(strategy, task)`` in two workers, and in one process with several replicas."""
    run = partial(workers.run, "tensorflow")
    ranks = (replicas.RANKS,)
    return judge(replicas.OFFICIAL, replicas.play, replicas.CASES, train_with, ranks=ranks, timeout=200, run=run)


@exercise(title="JAX", difficulty=2, minutes=25, timeout=120, needs=("jax",), official=meshes.OFFICIAL)
def jax(train_on: Any) -> dict[str, Any]:
    """Judge ``train_on(devices, task)`` in one process with several devices."""
    return judge(meshes.OFFICIAL, meshes.play, meshes.CASES, train_on)
