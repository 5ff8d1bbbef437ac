"""What this lab's check says about the workers that Horovod and TensorFlow have started.

The trainings are small enough to do again in numpy, also with the mistakes that one makes here. So a wrong result is
recognised by what it equals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
from numpy import ndarray

from checks.contracts import Broken, Case, Facts, in_steps
from checks.other_frameworks.training_tasks import alone, shifted, start_of
from utils.training.same_training import Batches

CLOSE = 1e-4  # of a loss or a weight, in float32, added up in another order; seen: less than 1e-6
Result = tuple[list[float], list[ndarray]]


# ---------------------------------------------------------------------- Horovod
def judge_horovod(case: Case, found: Sequence[Facts]) -> Iterator[Broken]:
    """The clauses that break where the workers do not do together what one process does."""
    yield from _reads(case, [facts["reads"] for facts in found])
    yield from _who(found, "logged", "logs", "loss")
    yield from _saved(found)
    if not all(facts["weights"] for facts in found):
        yield Broken("value:model", "train must take its model from task.model()")
        return
    workers, right = case["ranks"], horovod(case, case["ranks"])
    weights = [_flat(facts["weights"]) for facts in found]
    if not all(_near(one, right[1]) for one in weights):
        yield from _wrong_weights(case, found, weights)
    elif found[0]["logged"] and found[0]["saved"]:
        yield from _losses(found[0]["logged"], right[0])
        if not _near(_flat(found[0]["saved"][-1]), right[1]):
            words = "the checkpoint does not hold the weights of the end: save after the last step"
            yield Broken("value:saved", words, f"{workers} workers")


def judge_accident(case: Case, found: Sequence[Facts]) -> Iterator[Broken]:
    """The same for the second start of a training, in which a worker has died in the first one."""
    died, firsts = case["accident"][1], [min(facts["reads"][0], default=0) for facts in found if facts["reads"]]
    begin = min(firsts) // (case["batch"] * case["ranks"]) if firsts else None
    if different := list(judge_begin(case, firsts)):
        yield from different
        return
    if begin not in (died - 1, died):
        words = (
            f"a worker has died in step {died}, and started again all begin with step {begin}: keep the state after "
        )
        yield Broken("value:begin", f"{words}each step, and go on behind the last one that is kept")
        return
    yield from _reads(case, [facts["reads"] for facts in found], begin)
    if not all(facts["weights"] for facts in found):
        yield Broken("value:model", "train_on must take its model from task.model()")
        return
    right, weights = _with_momentum(case), [_flat(facts["weights"]) for facts in found]
    if all(_near(one, right) for one in weights):
        yield from _kept(case, found, begin)
        return
    if _near(weights[0], _with_momentum(case, forgets=begin)):
        words = "the optimizer begins anew: its momentum is a part of the state"
        yield Broken("value:momentum", f"{words}, to be kept, and to be given to all workers")
    if any(not _near(one, [weights[0]]) for one in weights):
        words = (
            "the workers have different weights at the end: all need the weights and the optimizer's state of worker 0"
        )
        yield Broken("value:different", words)
    yield Broken("value:weights", "the final weights are not those of one process in which nothing has happened")


def _kept(case: Case, found: Sequence[Facts], begin: int) -> Iterator[Broken]:
    """Whichever worker dies next, and in whichever step: one of the others has kept one of the last two states."""
    for step in range(begin + 2, case["steps"]):
        now = (step - begin) * case["batch"]  # samples that each worker has read before this step
        keep = [any(now - case["batch"] <= at <= now for at in facts["saves"]) for facts in found]
        for worker in range(1, case["ranks"]):
            if not any(keep[:worker] + keep[worker + 1 :]):
                words = f"had worker {worker} died in step {step}, all would go on with an earlier step than {step - 1}"
                yield Broken("value:kept", f"{words}: one of the others keeps the state after each step")
                return


def judge_begin(case: Case, firsts: Sequence[int]) -> Iterator[Broken]:
    """The first samples that workers have read after the accident belong to one step."""
    died = case["accident"][0]
    begins = sorted(first // (case["batch"] * case["ranks"]) for first in firsts)
    if len(set(begins)) > 1:
        words = (
            f"started again, the workers begin with different steps: the disk of worker {died} is lost, so all need "
        )
        yield Broken("value:begin", f"{words}the state that one of the others has kept", f"steps {begins}")


def _with_momentum(case: Case, forgets: int | None = None) -> list[ndarray]:
    batches, rate = _whole_batches(case), case["lr"] * case["ranks"]
    return alone(batches, rate, start=start_of(case, 0), momentum=case["momentum"], forgets=forgets)[1]


def _wrong_weights(case: Case, found: Sequence[Facts], weights: list[ndarray]) -> Iterator[Broken]:
    workers = case["ranks"]
    if all(_near(one, facts["begun"]) for one, facts in zip(weights, found, strict=True)):
        words = "at the end the network of task.model() is as it was at the first step: train it itself, and not a copy"
        yield Broken("value:model", words)
        return
    if found[0]["elements"] < case["steps"] * len(weights[0]):
        yield from _too_little(found[0]["elements"], case["steps"], len(weights[0]))
    begun = [_flat(facts["begun"]) for facts in found]
    if (apart := max(abs(one - begun[0]).max() for one in begun)) > CLOSE:
        yield Broken(
            "value:start",
            "the workers start with different weights, and equal gradients do not make them equal: give all the "
            "weights and biases of worker 0 before the first step",
            f"{apart:.2g} apart at the first step",
            "equal weights",
        )
    for scale, sentence in (
        (1, f"the learning rate {case['lr']:g} suits one worker's batch of {case['batch']}: with {workers} workers the "
         f"batch is {workers} times as large, and the rate should be too"),
        (workers**2, f"the steps are {workers} times too long: are the gradients added up, and the rate scaled as "
         "well? One of the two is enough"),
    ):  # fmt: skip
        if _near(weights[0], horovod(case, scale)[1]):
            yield Broken("value:rate", sentence)
    if any(not _near(one, [weights[0]]) for one in weights):
        words = (
            "the workers have different weights at the end: were all of them given those of worker 0, parameters and "
        )
        yield Broken("value:different", f"{words}biases, and does every step use the averaged gradients?")
    yield Broken("value:weights", "the final weights are not those of one process with the whole batch")


def _too_little(reduced: int, steps: int, gradients: int) -> Iterator[Broken]:
    """Fewer numbers than all gradients have; one or two in a step are losses."""
    if reduced <= 2 * steps:
        words = "no gradient is ever averaged, and each worker trains for itself: wrap the optimizer with Horovod's"
        yield Broken("value:apart", words)
        return
    words = "fewer numbers are reduced than the gradients of all steps have: average every gradient in every step"
    yield Broken("value:apart", words, f"{reduced:,}", f"{steps * gradients:,}")


def horovod(case: Case, scale: int) -> Result:
    """What one process gets with the batches of all workers, and the rate so many times as large."""
    return alone(_whole_batches(case), case["lr"] * scale, start=start_of(case, 0))


def _whole_batches(case: Case) -> list[tuple[ndarray, ndarray]]:
    whole, data = case["batch"] * case["ranks"], Batches()
    parts = [slice(step * whole, (step + 1) * whole) for step in range(case["steps"])]
    return [(data.images[part], data.labels[part]) for part in parts]


def _reads(case: Case, reads: Sequence[Sequence[Sequence[int]]], first: int = 0) -> Iterator[Broken]:
    """In step k, all workers together read the samples from batch · k · workers on."""
    batch, whole = case["batch"], case["batch"] * case["ranks"]
    reads = [in_steps(mine, batch) for mine in reads]
    if any(len(mine) != case["steps"] - first for mine in reads):
        words = f"each worker reads {batch} samples in each of the {case['steps'] - first} steps"
        yield Broken("value:steps", words, f"{[sum(map(len, mine)) for mine in reads]} samples in all")
        return
    if all(mine == reads[0] for mine in reads):
        words = "all workers read the same samples, so all do the same work: let each read its own"
        yield Broken("value:same", words, f"{len(reads[0][0])} samples in step 0, the same in each worker")
    for step in range(first, case["steps"]):
        now = [mine[step - first] for mine in reads]
        sizes = [len(mine) for mine in now]
        if set(sizes) != {batch}:
            yield Broken("value:sizes", f"in step {step}, each worker reads {batch} samples", str(sizes))
        together = sorted(number for mine in now for number in mine)
        if together != list(range(step * whole, (step + 1) * whole)):
            words = f"the workers together must read the samples {step * whole} to {(step + 1) * whole - 1}, each once"
            seen = f"{len(set(together))} different ones, {together[:1]} to {together[-1:]}"
            yield Broken("value:once", f"in step {step}, {words}", seen)


# ---------------------------------------------------------------------- TensorFlow
def judge_tensorflow(case: Case, found: Sequence[Facts]) -> Iterator[Broken]:
    """The same for a strategy: ``found`` is of all its processes, ``case["ranks"]`` the number of its replicas."""
    yield from _parts(case, found)
    yield from _saved(found)
    if not found[0]["saved"]:
        return
    replicas, right, got = case["ranks"], tensorflow(case, 1.0), _flat(found[0]["saved"][-1])
    if _near(got, right[1]):
        for number, facts in enumerate(found):
            if not facts["logged"]:
                yield Broken("value:logged", f"worker {number} logs no loss: each process logs that of the whole batch")
            yield from _losses(facts["logged"], right[0])
        return
    for scale, sentence in (
        (replicas, "the steps are as many times too long as there are replicas: gradients are added up, so each "
         "replica divides the sum of its losses by the samples of the whole batch"),
        (1 / replicas, "the steps are as many times too short as there are replicas: is the loss divided by the "
         "samples of the whole batch, and are the gradients averaged on top of it?"),
    ):  # fmt: skip
        if _near(got, tensorflow(case, scale)[1]):
            yield Broken("value:rate", sentence)
    if any(_near(got, apart(case, whole)[1]) for whole in (True, False)):
        words = "the gradients of the replicas never meet: each replica trains with its own part"
        yield Broken("value:apart", words, f"1/{replicas} of the samples in each update")
    yield Broken(
        "value:weights",
        "the saved weights are not those of one process: do all replicas start with equal weights, made in "
        "strategy.scope(), and make the same steps?",
    )


def tensorflow(case: Case, scale: float) -> Result:
    """What one process gets with the whole batch, and the rate so many times as large."""
    batches = [Batches()[shifted(case, step)] for step in range(case["steps"])]
    return alone(batches, case["lr"] * scale, start=start_of(case, 0))


def apart(case: Case, whole: bool) -> Result:
    """Replica 0, if it were alone with its part; the loss divided by the whole batch's samples or by the part's."""
    data = Batches(0, case["ranks"])
    batches = [data[shifted(case, step)] for step in range(case["steps"])]
    return alone(batches, case["lr"], case["batch"] if whole else None, start_of(case, 0))


def _parts(case: Case, found: Sequence[Facts]) -> Iterator[Broken]:
    replicas, steps = case["ranks"], case["steps"]
    reads = [part for facts in found for part in facts["reads"]]
    if any(count == 1 for _, _, count in reads):
        yield Broken("value:whole", "each replica takes the whole batch, so all do the same work: give each its part")
        return
    if wrong := sorted({count for _, _, count in reads} - {replicas}):
        words = "the batch is shared among all replicas"
        yield Broken("value:count", words, f"{wrong[0]} parts", f"{replicas} parts")
        return
    seen, whole = {(step, index) for step, index, _ in reads}, set(range(replicas))
    if missing := sorted({(step, index) for step in range(steps) for index in whole} - seen):
        words = f"over all replicas, each part of each of the {steps} batches must be used"
        yield Broken("value:parts", words, "of step {}, part {} is not".format(*missing[0]))
    elif seen - {(step, index) for step in range(steps) for index in whole}:
        yield Broken("value:parts", f"there are {steps} steps, and parts of others are taken too", str(max(seen)[0]))
    elif len(found) > 1 and any({index for _, index, _ in facts["reads"]} == whole for facts in found):
        yield Broken("value:parts", "a worker takes the parts of all replicas: each takes its own")


# ---------------------------------------------------------------------- both
def _who(found: Sequence[Facts], key: str, verb: str, what: str) -> Iterator[Broken]:
    who = [number for number, facts in enumerate(found) if facts[key]]
    if who != [0]:
        words = f"only worker 0 {verb} the {what}"
        if 0 in who:
            words += ", and here others do too: all would write the same file"
        yield Broken(f"value:{key}", words if who else f"nobody {verb} the {what}: worker 0 should", f"workers {who}")


def _saved(found: Sequence[Facts]) -> Iterator[Broken]:
    yield from _who(found, "saved", "saves", "checkpoint")
    if (times := len(found[0]["saved"])) > 1:
        yield Broken("value:saved", f"the checkpoint is saved {times} times: once, at the end, is asked for")


def _losses(logged: list[Any], right: list[float]) -> Iterator[Broken]:
    losses = dict(map(tuple, logged))
    if sorted(losses) != list(range(len(right))):
        words = f"the loss of each of the {len(right)} steps is logged"
        yield Broken("value:logged", words, f"steps {sorted(losses)}")
        return
    if many := sorted(step for step, told in losses.items() if len(told) > 1):
        words = f"step {many[0]} is logged more than once"
        yield Broken("value:logged", words, f"{len(losses[many[0]])} losses", "one")
    for step, wanted in enumerate(right):
        got = losses[step][-1]
        if not abs(got - wanted) <= CLOSE:
            times = got / wanted
            whole = math.isfinite(times) and times > 1.5 and abs(times - round(times)) < 1e-3
            hint = f": it is {times:.0f} times as large" if whole else ""
            words = f"the weights are right, but the loss that is logged in step {step} is not the mean over the whole "
            yield Broken("value:losses", f"{words}batch{hint}", f"{got:.6g}", f"{wanted:.6g}")
            return


def _flat(arrays: list[Any]) -> ndarray:
    return numpy.concatenate([numpy.ravel(array) for array in arrays])


def _near(got: ndarray, wanted: list[Any]) -> bool:
    wanted = _flat(wanted)
    return got.shape == wanted.shape and bool(numpy.abs(got - wanted).max() < CLOSE)
