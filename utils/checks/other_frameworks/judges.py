"""What this lab's check says about the workers that Horovod and TensorFlow have started.

The trainings are small enough to do again in numpy, also with the mistakes that one makes here. So a wrong result is
recognised by what it equals.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy
from numpy import ndarray

from utils.checks.other_frameworks.launching import Facts
from utils.checks.other_frameworks.training_tasks import HorovodTask, TensorFlowTask, alone
from utils.checks.verdicts import Wrong
from utils.training.same_training import Batches

CLOSE = 1e-4  # of a loss or a weight, in float32, added up in another order; seen: less than 1e-6
Result = tuple[list[float], list[ndarray]]


# ---------------------------------------------------------------------- Horovod
def judge_horovod(found: list[Facts]) -> float:
    """Raise Wrong with the likeliest mistake, if the workers did not do together what one process does.

    Returns:
        The largest difference of a loss from that of one process.
    """
    workers, steps, batch = len(found), HorovodTask.steps, HorovodTask.batch
    _judge_samples([facts["reads"] for facts in found], workers)
    _judge_who(found, "logged", "logs", "loss")
    _judge_who(found, "saved", "saves", "checkpoint")
    lr, right = HorovodTask.lr, _horovod(workers, workers)
    if not all(facts["weights"] for facts in found):
        raise Wrong("train must take its model from task.model()")
    weights = [_flat(facts["weights"]) for facts in found]
    if found[0]["elements"] < steps * len(weights[0]):
        raise Wrong(
            "no gradient is ever averaged, and each worker trains for itself: wrap the optimizer with Horovod's"
        )
    if not _near(weights[0], right[1]):
        if not found[0]["broadcast"]:
            raise Wrong(
                "each worker starts with other weights, and equal gradients do not make them equal: give all the "
                "weights of worker 0 before the first step",
                measured=f"{max(abs(one - weights[0]).max() for one in weights):.2g} apart at the end",
                expected="equal weights",
            )
        for scale, sentence in (
            (1, f"the learning rate {lr:g} suits one worker's batch of {batch}: with {workers} workers the batch is "
             f"{workers} times as large, and the rate should be too"),
            (workers**2, f"the steps are {workers} times too long: are the gradients added up, and the rate scaled as "
             f"well? One of the two is enough"),
        ):  # fmt: skip
            if _near(weights[0], _horovod(workers, scale)[1]):
                raise Wrong(sentence)
    if any(not _near(one, [weights[0]]) for one in weights):
        raise Wrong(
            "the workers have different weights at the end: were all of them given those of worker 0, parameters and "
            "biases, and does every step use the averaged gradients?"
        )
    if not _near(weights[0], right[1]):
        raise Wrong(
            "the final weights are not those of one process with the whole batch",
            measured=f"{found[0]['reduced']} reductions",
        )
    apart = _judge_losses(found[0]["logged"], right[0], steps)
    _judge_saved(found[0]["saved"], weights[0])
    return apart


@cache
def _horovod(workers: int, scale: float) -> Result:
    whole = HorovodTask.batch * workers
    data = Batches()
    parts = [slice(step * whole, (step + 1) * whole) for step in range(HorovodTask.steps)]
    return alone([(data.images[part], data.labels[part]) for part in parts], HorovodTask.lr * scale)


def _judge_samples(reads: list[list[list[int]]], workers: int) -> None:
    """Each worker reads 48 samples a step; in step k, all together read those with the numbers from 48·k·workers on."""
    batch, steps = HorovodTask.batch, HorovodTask.steps
    whole = batch * workers
    if [len(mine) for mine in reads] != [steps] * workers:
        raise Wrong(f"each worker reads once in each of the {steps} steps", measured=[len(mine) for mine in reads])
    if all(mine == reads[0] for mine in reads):
        raise Wrong(
            "all workers read the same samples, so all do the same work: let each read its own",
            measured=f"{len(reads[0][0])} samples in step 0, the same in each worker",
        )
    for step in range(steps):
        sizes = [len(mine[step]) for mine in reads]
        if set(sizes) != {batch}:
            raise Wrong(
                f"in step {step}, each worker reads {batch} samples", measured=sizes, expected=[batch] * workers
            )
        together = sorted(number for mine in reads for number in mine[step])
        if together != list(range(step * whole, (step + 1) * whole)):
            raise Wrong(
                f"in step {step}, the workers together must read the samples {step * whole} to "
                f"{(step + 1) * whole - 1}, each once",
                measured=f"{len(set(together))} different ones, {together[0]} to {together[-1]}",
            )


def _judge_who(found: list[Facts], key: str, verb: str, what: str) -> None:
    who = [number for number, facts in enumerate(found) if facts[key]]
    if who == [0]:
        return
    if not who:
        raise Wrong(f"nobody {verb} the {what}: worker 0 should")
    raise Wrong(
        f"only worker 0 {verb} the {what}, and here others do too: all would write the same file",
        measured=f"workers {who}",
    )


# ---------------------------------------------------------------------- TensorFlow
def judge_tensorflow(several: list[Facts], mirrored: Facts) -> float:
    """The same for both strategies: facts of the workers, and of the process with several replicas."""
    from utils.checks.other_frameworks.worker import REPLICAS, WORKERS

    runs = [
        (several, WORKERS, f"with {WORKERS} workers"),
        ([mirrored], REPLICAS, f"with {REPLICAS} replicas in one process"),
    ]
    return max(_judge_run(found, replicas, f"({where})") for found, replicas, where in runs)


def _judge_run(found: list[Facts], replicas: int, where: str) -> float:
    steps = TensorFlowTask.steps
    _judge_parts(found, replicas, where)
    who = [number for number, facts in enumerate(found) if facts["saved"]]
    if not who:
        raise Wrong(f"nobody saves: worker 0 should {where}")
    if who != [0]:
        raise Wrong(
            f"only worker 0 saves, and here others do too: all would write the same file {where}",
            measured=f"workers {who}",
        )
    right, got = _tensorflow(1.0), _flat(found[0]["saved"][-1])
    if not _near(got, right[1]):
        for scale, sentence in (
            (replicas, "the steps are as many times too long as there are replicas: gradients are added up, so each "
             "replica divides the sum of its losses by the samples of the whole batch"),
            (1 / replicas, "the steps are as many times too short as there are replicas: the loss is divided by the "
             "samples of the whole batch, and the gradients are averaged on top of it"),
        ):  # fmt: skip
            if _near(got, _tensorflow(scale)[1]):
                raise Wrong(f"{sentence} {where}")
        for whole in (True, False):
            if _near(got, _apart(replicas, whole)[1]):
                raise Wrong(
                    f"the gradients of the replicas never meet: each replica trains with its own part {where}",
                    measured=f"1/{replicas} of the samples in each update",
                )
        raise Wrong(
            f"the saved weights are not those of one process {where}: do all replicas start with equal weights, "
            "made in strategy.scope(), and make the same steps?"
        )
    return max(_judge_losses(facts["logged"], right[0], steps, where) for facts in found)


@cache
def _tensorflow(scale: float) -> Result:
    data = Batches()
    return alone([data[step] for step in range(TensorFlowTask.steps)], TensorFlowTask.lr * scale)


@cache
def _apart(replicas: int, whole: bool) -> Result:
    """Replica 0, if it were alone with its part; the loss divided by the whole batch's samples or by the part's."""
    data = Batches(0, replicas)
    batches = [data[step] for step in range(TensorFlowTask.steps)]
    return alone(batches, TensorFlowTask.lr, TensorFlowTask.batch if whole else None)


def _judge_parts(found: list[Facts], replicas: int, where: str) -> None:
    steps = TensorFlowTask.steps
    reads = [part for facts in found for part in facts["reads"]]
    if any(count == 1 for _, _, count in reads):
        raise Wrong(f"each replica takes the whole batch, so all do the same work: give each its part {where}")
    if wrong := sorted({count for _, _, count in reads} - {replicas}):
        raise Wrong(
            f"the batch is shared among all replicas {where}",
            measured=f"{wrong[0]} parts",
            expected=f"{replicas} parts",
        )
    wanted = {(step, index) for step in range(steps) for index in range(replicas)}
    got = [(step, index) for step, index, _ in reads]
    if set(got) != wanted or any(
        set(index for _, index, _ in facts["reads"]) == set(range(replicas)) for facts in found[1:]
    ):
        taken = sorted({index for _, index in got})
        raise Wrong(
            f"over all replicas, each part of each of the {steps} batches must be used {where}",
            measured=f"parts {taken}, {len(set(step for step, _ in got))} steps",
        )


# ---------------------------------------------------------------------- both
def _judge_losses(logged: list[Any], right: list[float], steps: int, where: str = "") -> float:
    losses = dict(map(tuple, logged))
    where = f" {where}" if where else ""
    if sorted(losses) != list(range(steps)):
        raise Wrong(f"the loss of each of the {steps} steps is logged{where}", measured=f"steps {sorted(losses)}")
    apart = 0.0
    for step, wanted in enumerate(right):
        got = losses[step][-1]
        if abs(got - wanted) > CLOSE:
            times = got / wanted
            hint = f": it is {times:.0f} times as large" if times > 1.5 and abs(times - round(times)) < 1e-3 else ""
            raise Wrong(
                f"the weights are right, but the loss that is logged in step {step} is not the mean over the whole "
                f"batch{where}{hint}",
                measured=got,
                expected=wanted,
            )
        apart = max(apart, abs(got - wanted))
    return apart


def _judge_saved(saved: list[Any], weights: ndarray) -> None:
    if not _near(_flat(saved[-1]), [weights]):
        raise Wrong("the checkpoint does not hold the weights of the end: save after the last step")


def _flat(arrays: list[Any]) -> ndarray:
    return numpy.concatenate([numpy.ravel(array) for array in arrays])


def _near(got: ndarray, wanted: list[Any]) -> bool:
    wanted = _flat(wanted)
    return got.shape == wanted.shape and bool(numpy.abs(got - wanted).max() < CLOSE)
