"""What this lab's check says about the workers that Horovod and TensorFlow have started.

The trainings are small enough to do again in numpy, also with the mistakes that one makes here. So a wrong result is
recognised by what it equals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
from numpy import ndarray

from checks.engine import refuse
from checks.engine.plain import in_steps
from checks.labs.other_frameworks.training_tasks import Case, alone, shifted, start_of
from utils.training.same_training import Batches

CLOSE = 1e-4  # of a loss or a weight, in float32, added up in another order; seen: less than 1e-6
Facts = dict[str, Any]
Result = tuple[list[float], list[ndarray]]


# ---------------------------------------------------------------------- Horovod
def judge_horovod(case: Case, found: Sequence[Facts]) -> None:
    """Refuse workers that do not do together what one process does."""
    _reads(case, [facts["reads"] for facts in found])
    _who(found, "logged", "logs", "loss")
    _saved(found)
    refuse(not all(facts["weights"] for facts in found), "train must take its model from task.model()")
    right, weights = horovod(case, case["ranks"]), [_flat(facts["weights"]) for facts in found]
    if not all(_near(one, right[1]) for one in weights):
        _wrong_weights(case, found, weights)
    _losses(found[0]["logged"], right[0])
    words = "the checkpoint does not hold the weights of the end: save after the last step"
    refuse(not _near(_flat(found[0]["saved"][-1]), right[1]), words)


def horovod(case: Case, scale: int) -> Result:
    """What one process gets with the batches of all workers, and the rate so many times as large."""
    return alone(_whole_batches(case), case["lr"] * scale, start=start_of(case, 0))


def _whole_batches(case: Case) -> list[tuple[ndarray, ndarray]]:
    whole, data = case["batch"] * case["ranks"], Batches()
    parts = [slice(step * whole, (step + 1) * whole) for step in range(case["steps"])]
    return [(data.images[part], data.labels[part]) for part in parts]


def _reads(case: Case, reads: Sequence[Sequence[Sequence[int]]]) -> None:
    """In step k, all workers together read the samples from batch · k · workers on."""
    batch, steps, whole = case["batch"], case["steps"], case["batch"] * case["ranks"]
    reads = [in_steps(mine, batch) for mine in reads]
    words = f"each worker reads {batch} samples in each of the {steps} steps"
    counts = f"{[sum(map(len, mine)) for mine in reads]} samples in all"
    refuse(any(len(mine) != steps for mine in reads), words, measured=counts)
    words = "all workers read the same samples, so all do the same work: let each read its own"
    refuse(all(mine == reads[0] for mine in reads), words)
    for step in range(steps):
        now = [mine[step] for mine in reads]
        sizes = [len(mine) for mine in now]
        refuse(set(sizes) != {batch}, f"in step {step}, each worker reads {batch} samples", measured=str(sizes))
        together = sorted(number for mine in now for number in mine)
        words = f"the workers together must read the samples {step * whole} to {(step + 1) * whole - 1}, each once"
        seen = f"{len(set(together))} different ones, {together[:1]} to {together[-1:]}"
        right = list(range(step * whole, (step + 1) * whole))
        refuse(together != right, f"in step {step}, {words}", measured=seen)


def _wrong_weights(case: Case, found: Sequence[Facts], weights: list[ndarray]) -> None:
    workers, reduced, all_of_them = case["ranks"], found[0]["elements"], case["steps"] * len(weights[0])
    words = "at the end the network of task.model() is as it was at the first step: train it itself, and not a copy"
    refuse(all(_near(one, facts["begun"]) for one, facts in zip(weights, found, strict=True)), words)
    words = "no gradient is ever averaged, and each worker trains for itself: wrap the optimizer with Horovod's"
    refuse(reduced <= 2 * case["steps"], words)  # (one or two in a step are losses)
    words = "fewer numbers are reduced than the gradients of all steps have: average every gradient in every step"
    refuse(reduced < all_of_them, words, measured=f"{reduced:,}", expected=f"{all_of_them:,}")
    begun = [_flat(facts["begun"]) for facts in found]
    apart = max(abs(one - begun[0]).max() for one in begun)
    words = (
        "the workers start with different weights, and equal gradients do not make them equal: give all the weights "
        "and biases of worker 0 before the first step"
    )
    refuse(apart > CLOSE, words, measured=f"{apart:.2g} apart at the first step", expected="equal weights")
    words = (
        f"the learning rate {case['lr']:g} suits one worker's batch of {case['batch']}: with {workers} workers the "
        f"batch is {workers} times as large, and the rate should be too"
    )
    refuse(_near(weights[0], horovod(case, 1)[1]), words)
    words = (
        f"the steps are {workers} times too long: are the gradients added up, and the rate scaled as well? One of the "
        "two is enough"
    )
    refuse(_near(weights[0], horovod(case, workers**2)[1]), words)
    words = (
        "the workers have different weights at the end: were all of them given those of worker 0, parameters and "
        "biases, and does every step use the averaged gradients?"
    )
    refuse(any(not _near(one, [weights[0]]) for one in weights), words)
    refuse(True, "the final weights are not those of one process with the whole batch")


# ---------------------------------------------------------------------- TensorFlow
def judge_tensorflow(case: Case, found: Sequence[Facts]) -> None:
    """The same for a strategy: ``found`` is of all its processes, ``case["ranks"]`` the number of its replicas."""
    _parts(case, found)
    _saved(found)
    replicas, right, got = case["ranks"], tensorflow(case, 1.0), _flat(found[0]["saved"][-1])
    if _near(got, right[1]):
        for number, facts in enumerate(found):
            words = f"worker {number} logs no loss: each process logs that of the whole batch"
            refuse(not facts["logged"], words)
            _losses(facts["logged"], right[0])
        return
    words = (
        "the steps are as many times too long as there are replicas: gradients are added up, so each replica divides "
        "the sum of its losses by the samples of the whole batch"
    )
    refuse(_near(got, tensorflow(case, replicas)[1]), words)
    words = (
        "the steps are as many times too short as there are replicas: is the loss divided by the samples of the whole "
        "batch, and are the gradients averaged on top of it?"
    )
    refuse(_near(got, tensorflow(case, 1 / replicas)[1]), words)
    words = "the gradients of the replicas never meet: each replica trains with its own part"
    never = any(_near(got, apart(case, whole)[1]) for whole in (True, False))
    refuse(never, words, measured=f"1/{replicas} of the samples in each update")
    words = (
        "the saved weights are not those of one process: do all replicas start with equal weights, made in "
        "strategy.scope(), and make the same steps?"
    )
    refuse(True, words)


def tensorflow(case: Case, scale: float) -> Result:
    """What one process gets with the whole batch, and the rate so many times as large."""
    batches = [Batches()[shifted(case, step)] for step in range(case["steps"])]
    return alone(batches, case["lr"] * scale, start=start_of(case, 0))


def apart(case: Case, whole: bool) -> Result:
    """Replica 0, if it were alone with its part; the loss divided by the whole batch's samples or by the part's."""
    data = Batches(0, case["ranks"])
    batches = [data[shifted(case, step)] for step in range(case["steps"])]
    return alone(batches, case["lr"], case["batch"] if whole else None, start_of(case, 0))


def _parts(case: Case, found: Sequence[Facts]) -> None:
    replicas, steps = case["ranks"], case["steps"]
    reads = [part for facts in found for part in facts["reads"]]
    words = "each replica takes the whole batch, so all do the same work: give each its part"
    refuse(any(count == 1 for _, _, count in reads), words)
    wrong = sorted({count for _, _, count in reads} - {replicas})
    words = "the batch is shared among all replicas"
    refuse(wrong, words, measured=f"{wrong[:1]} parts", expected=f"{replicas} parts")
    seen, whole = {(step, index) for step, index, _ in reads}, set(range(replicas))
    every = {(step, index) for step in range(steps) for index in whole}
    words = f"over all replicas, each part of each of the {steps} batches must be used"
    missing = sorted(every - seen)
    refuse(missing, words, measured="of step {}, part {} is not".format(*(missing or [(0, 0)])[0]))
    words = f"there are {steps} steps, and parts of others are taken too"
    refuse(seen - every, words, measured=str(max(seen)[0]))
    words = "a worker takes the parts of all replicas: each takes its own"
    refuse(len(found) > 1 and any({index for _, index, _ in one["reads"]} == whole for one in found), words)


# ---------------------------------------------------------------------- both
def _who(found: Sequence[Facts], key: str, verb: str, what: str) -> None:
    who = [number for number, facts in enumerate(found) if facts[key]]
    refuse(not who, f"nobody {verb} the {what}: worker 0 should")
    more = ", and here others do too: all would write the same file" if 0 in who else ""
    refuse(who != [0], f"only worker 0 {verb} the {what}{more}", measured=f"workers {who}")


def _saved(found: Sequence[Facts]) -> None:
    _who(found, "saved", "saves", "checkpoint")
    times = len(found[0]["saved"])
    refuse(times > 1, f"the checkpoint is saved {times} times: once, at the end, is asked for")


def _losses(logged: list[Any], right: list[float]) -> None:
    losses = dict(map(tuple, logged))
    words = f"the loss of each of the {len(right)} steps is logged"
    refuse(sorted(losses) != list(range(len(right))), words, measured=f"steps {sorted(losses)}")
    many = [step for step, told in losses.items() if len(told) > 1]
    refuse(many, f"step {min(many, default=0)} is logged more than once")
    for step, wanted in enumerate(right):
        got = losses[step][-1]
        times = got / wanted
        whole = math.isfinite(times) and times > 1.5 and abs(times - round(times)) < 1e-3
        hint = f": it is {times:.0f} times as large" if whole else ""
        words = f"the weights are right, but the loss that is logged in step {step} is not the mean over the whole "
        refuse(not abs(got - wanted) <= CLOSE, f"{words}batch{hint}", measured=f"{got:.6g}", expected=f"{wanted:.6g}")


def _flat(arrays: list[Any]) -> ndarray:
    return numpy.concatenate([numpy.ravel(array) for array in arrays])


def _near(got: ndarray, wanted: list[Any]) -> bool:
    wanted = _flat(wanted)
    return got.shape == wanted.shape and bool(numpy.abs(got - wanted).max() < CLOSE)
